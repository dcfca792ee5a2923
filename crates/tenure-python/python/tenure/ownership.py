"""Ownership inside a transaction of one's own."""

from __future__ import annotations

import dataclasses
from typing import Any, List, Optional

from .errors import Lost, TenureError

__all__ = ["Ownership"]

#: For SQLAlchemy: with an empty set of parameters a driver would read each `%`.
_RAW = {"no_parameters": True}


@dataclasses.dataclass(frozen=True)
class Ownership:
    """What a transaction looks for, so that it commits only while the lease holds the lock."""

    #: ``"sql"``, ``"redis"``, ``"etcd"`` or ``"zookeeper"``.
    kind: str
    #: SQL: the statement with placeholders, `$1` and `$2` or `?` and `?`.
    statement: str = ""
    #: SQL: its first parameter.
    row: str = ""
    #: SQL: its second parameter. Redis: what the value of the key begins with.
    proof: str = dataclasses.field(default="", repr=False)
    #: SQL: the statement with its parameters in it.
    literal: str = dataclasses.field(default="", repr=False)
    #: Redis and etcd: the key; ZooKeeper: the path.
    key: str = ""
    #: etcd: the create revision of the key.
    create_revision: int = 0

    @classmethod
    def _of(cls, kind: str, texts: List[str]) -> Ownership:
        if kind == "sql":
            statement, row, proof, literal = texts
            return cls(kind, statement=statement, row=row, proof=proof, literal=literal)
        if kind == "redis":
            return cls(kind, key=texts[0], proof=texts[1])
        if kind == "etcd":
            return cls(kind, key=texts[0], create_revision=int(texts[1]))
        return cls(kind, key=texts[0])

    def verify(self, transaction: Any) -> None:
        """Raises :class:`Lost` unless the lease holds the lock; the row stays locked until the transaction ends.

        Call it as the first statement of the transaction. ``transaction`` is a cursor or a connection of psycopg, a cursor of
        any driver, a cursor of Django's connection, or a connection or a session of SQLAlchemy.
        """
        self._require_sql()
        _judge(_execute(transaction, self.literal))

    async def verify_async(self, transaction: Any) -> None:
        """As :meth:`verify`, for an asynchronous connection or cursor of psycopg or SQLAlchemy."""
        self._require_sql()
        if hasattr(transaction, "connection") and callable(transaction.connection):
            transaction = await transaction.connection()
        if hasattr(transaction, "exec_driver_sql"):
            found = (await transaction.exec_driver_sql(self.literal, None, _RAW)).first()
        else:
            cursor = await transaction.execute(self.literal)
            found = await (transaction if cursor is None else cursor).fetchone()
        _judge(found)

    def _require_sql(self) -> None:
        if self.kind != "sql":
            raise TenureError(f"a transaction of {self.kind} is not one of SQL: compare with `key` in it")


def _execute(transaction: Any, literal: str) -> Optional[Any]:
    if hasattr(transaction, "connection") and callable(transaction.connection):
        transaction = transaction.connection()
    if hasattr(transaction, "exec_driver_sql"):
        return transaction.exec_driver_sql(literal, None, _RAW).first()
    cursor = transaction.execute(literal)
    # A cursor of DB-API returns nothing or a count, a connection of psycopg a cursor.
    return (cursor if hasattr(cursor, "fetchone") else transaction).fetchone()


def _judge(found: Optional[Any]) -> None:
    if found is None:
        raise Lost("the lease does not hold the lock any more, as the transaction sees it", cause="taken")
