"""Ownership inside a transaction of the program's own, by the libraries that programs use."""

import asyncio
import unittest
from urllib.parse import urlsplit

import tenure
from support import KIND, PATIENCE, URL, Case, name

SERVER = urlsplit(URL)
IS_POSTGRES = KIND == "postgres"


def connection():
    """A connection of the driver, as a program opens it."""
    if IS_POSTGRES:
        import psycopg

        return psycopg.connect(host=SERVER.hostname, port=SERVER.port, user=SERVER.username, dbname="tenure")
    import pymysql

    return pymysql.connect(host=SERVER.hostname, port=SERVER.port, user=SERVER.username, database="tenure")


def engine():
    import sqlalchemy

    driver = "postgresql+psycopg" if IS_POSTGRES else "mysql+pymysql"
    return sqlalchemy.create_engine(f"{driver}://{SERVER.username}@{SERVER.hostname}:{SERVER.port}/tenure")


class Transactions(Case):
    def setUp(self):
        super().setUp()
        self.table = name("t").replace("-", "")
        self.run_sql(f"CREATE TABLE {self.table} (writer VARCHAR(64))")

    def run_sql(self, text):
        with connection() as opened, opened.cursor() as cursor:
            cursor.execute(text)
            rows = cursor.fetchall() if cursor.description else []
            opened.commit()
            return rows

    def insert(self, who):
        return f"INSERT INTO {self.table} VALUES ('{who}')"

    def written(self):
        return sorted(row[0] for row in self.run_sql(f"SELECT writer FROM {self.table}"))

    def commits_only_as_the_owner(self, transaction):
        """`transaction(ownership, statement)` runs both in one transaction."""
        # Each driver reads some signs in a statement: the name of a lock must not be one of them.
        lock = name("50% of :this ?")
        with self.locks.mutex(lock) as lease:
            ownership = lease.ownership()
            transaction(ownership, self.insert("owner"))
            lease.check()
        # Another holder came since.
        with self.other.mutex(lock, wait=PATIENCE):
            with self.assertRaises(tenure.Lost):
                transaction(ownership, self.insert("late"))
        self.assertEqual(self.written(), ["owner"])

    def test_a_cursor_of_the_driver(self):
        def transaction(ownership, statement):
            with connection() as opened, opened.cursor() as cursor:
                cursor.execute("BEGIN")
                ownership.verify(cursor)
                cursor.execute(statement)
                opened.commit()

        self.commits_only_as_the_owner(transaction)

    @unittest.skipUnless(IS_POSTGRES, "of psycopg")
    def test_a_connection_of_psycopg(self):
        def transaction(ownership, statement):
            with connection() as opened, opened.transaction():
                ownership.verify(opened)
                opened.execute(statement)

        self.commits_only_as_the_owner(transaction)

    @unittest.skipUnless(IS_POSTGRES, "of psycopg")
    def test_an_asynchronous_connection_of_psycopg(self):
        import psycopg

        async def run(ownership, statement):
            options = dict(host=SERVER.hostname, port=SERVER.port, user=SERVER.username, dbname="tenure")
            async with await psycopg.AsyncConnection.connect(**options) as opened:
                async with opened.transaction():
                    await ownership.verify_async(opened)
                    await opened.execute(statement)

        self.commits_only_as_the_owner(lambda ownership, statement: asyncio.run(run(ownership, statement)))

    def test_a_connection_of_sqlalchemy(self):
        import sqlalchemy

        def transaction(ownership, statement):
            with engine().begin() as opened:
                ownership.verify(opened)
                opened.execute(sqlalchemy.text(statement))

        self.commits_only_as_the_owner(transaction)

    def test_a_session_of_sqlalchemy(self):
        import sqlalchemy
        from sqlalchemy.orm import Session

        def transaction(ownership, statement):
            with Session(engine()) as session, session.begin():
                ownership.verify(session)
                session.execute(sqlalchemy.text(statement))

        self.commits_only_as_the_owner(transaction)

    @unittest.skipUnless(IS_POSTGRES, "its other drivers are built in C")
    def test_a_transaction_of_django(self):
        import django
        from django.conf import settings
        from django.db import connection as opened, transaction as transactions

        if not settings.configured:
            database = dict(
                ENGINE="django.db.backends.postgresql",
                HOST=SERVER.hostname,
                PORT=SERVER.port,
                USER=SERVER.username,
                NAME="tenure",
            )
            settings.configure(DATABASES={"default": database})
            django.setup()

        def transaction(ownership, statement):
            with transactions.atomic(), opened.cursor() as cursor:
                ownership.verify(cursor)
                cursor.execute(statement)

        try:
            self.commits_only_as_the_owner(transaction)
        finally:
            opened.close()

    def test_the_lock_waits_for_an_open_transaction(self):
        """No other client holds it while a transaction that relies on it is open, even if the lease was broken."""
        lock = name()
        with self.assertRaises(tenure.Lost), self.locks.mutex(lock) as lease:
            ownership = lease.ownership()
            with connection() as opened, opened.cursor() as cursor:
                cursor.execute("BEGIN")
                ownership.verify(cursor)
                self.assertIsNone(self.other.mutex(lock).try_acquire())
                cursor.execute(self.insert("owner"))
                opened.commit()
            self.other.force_release(lock)
        with self.other.mutex(lock, wait=PATIENCE):
            self.assertEqual(self.written(), ["owner"])


if __name__ == "__main__":
    unittest.main()
