//! The recipe of `etcdctl lock` with the least that can be done: a lease, one transaction, the end of the lease.

use etcd_client::{
    Client, Compare, CompareOp, GetOptions, PutOptions, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse,
};
use tenure_testkit::etcd::EtcdServer;

use crate::TTL;

/// One connection of the driver.
#[derive(Clone)]
pub(crate) struct ByHand(Client);

impl ByHand {
    pub(crate) async fn connect(server: &EtcdServer) -> Self {
        Self(Client::connect([server.address()], None).await.expect("a server"))
    }

    /// Takes a lock that is free and gives it back.
    pub(crate) async fn cycle(&mut self, folder: &str) {
        let seconds = i64::try_from(TTL.as_secs()).expect("BUG: a small number");
        let lease = self.0.lease_grant(seconds, None).await.expect("the server answers").id();
        let key = format!("{folder}{lease:x}");
        let first =
            GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Ascend).with_limit(1);
        let put = TxnOp::put(key.as_str(), "", Some(PutOptions::new().with_lease(lease)));
        let txn = Txn::new()
            .when([Compare::create_revision(key.as_str(), CompareOp::Equal, 0)])
            .and_then([put, TxnOp::get(folder, Some(first))]);
        let done = self.0.txn(txn).await.expect("the server answers");
        let answers = done.op_responses();
        let Some(TxnOpResponse::Get(line)) = answers.last() else {
            panic!("BUG: two answers to two questions")
        };
        assert_eq!(line.kvs()[0].key(), key.as_bytes(), "nobody else wants it");
        self.0.lease_revoke(lease).await.expect("the server answers");
    }
}
