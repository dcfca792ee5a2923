//! `Late`: a way to a server on which one piece of what a client says arrives late.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::Notify,
};

/// Forwards connections to a server. From a chosen piece on, one connection says nothing more until it is let go.
pub(crate) struct Late {
    port: u16,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// Pieces until one is held back; 0: none will be.
    countdown: AtomicUsize,
    is_held: AtomicBool,
    let_go: Notify,
}

impl Late {
    pub(crate) async fn to(server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let (port, state) = (listener.local_addr().unwrap().port(), Arc::<State>::default());
        let shared = state.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else { continue };
                let ((from, mut to), (mut replies, requests)) = (client.into_split(), server.into_split());
                tokio::spawn(forward(from, requests, shared.clone()));
                tokio::spawn(async move { tokio::io::copy(&mut replies, &mut to).await });
            }
        });
        Self { port, state }
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Holds back the piece of this number, counted from 1 and from now.
    pub(crate) fn hold(&self, number: usize) {
        self.state.countdown.store(number, Ordering::SeqCst);
    }

    /// Whether a piece was held back; from now on none will be.
    pub(crate) fn has_held(&self) -> bool {
        self.state.countdown.store(0, Ordering::SeqCst);
        self.state.is_held.load(Ordering::SeqCst)
    }

    /// It arrives now, even if its client has given up.
    pub(crate) fn let_go(&self) {
        self.state.let_go.notify_one();
    }
}

async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, state: Arc<State>) {
    let mut piece = vec![0; 65536];
    loop {
        let Ok(length @ 1..) = from.read(&mut piece).await else { return };
        let counted = state.countdown.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        if counted == Ok(1) {
            state.is_held.store(true, Ordering::SeqCst);
            state.let_go.notified().await;
        }
        if to.write_all(&piece[..length]).await.is_err() {
            return;
        }
        if counted == Ok(1) {
            // The server reads it before it learns that the client has gone.
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    }
}
