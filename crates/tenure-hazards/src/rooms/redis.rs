//! `RedisRoom`: one Redis server, the scene's own or the given one.

use std::time::Duration;

use redis::{Client, Connection};
use tenure_testkit::redis::{Recipe, RedisServer};

use crate::{
    record::{Kind, What},
    world::{Address, World},
};

/// A server, and where clients find it.
pub(crate) struct RedisRoom {
    server: Option<RedisServer>,
    pub(crate) address: Address,
}

impl RedisRoom {
    /// The given server, or one of its own.
    pub(crate) fn open(world: &mut World) -> Self {
        match world.given().map(str::to_owned) {
            None => Self::own(world, Recipe::new()),
            Some(url) => Self::given(world, &url),
        }
    }

    /// A server of this recipe.
    pub(crate) fn own(world: &mut World, recipe: Recipe) -> Self {
        let room = Self::silent(world, recipe);
        look(world, LANE, &room.address.naive);
        room
    }

    /// A server of its own at which nobody looks: its requests are counted.
    pub(crate) fn unwatched(world: &mut World) -> Self {
        world.writes_down(LANE, What::Opens(Kind::Store));
        Self::silent(world, Recipe::new())
    }

    fn silent(world: &World, recipe: Recipe) -> Self {
        let server = recipe.start();
        // A server that nobody has used: else its first grant would wait, once in its life.
        server.has_waited("tenure:one", &settings(world));
        Self { address: address(world, server.port()), server: Some(server) }
    }

    /// The server, where it is the scene's own.
    ///
    /// # Panics
    /// If it was given.
    pub(crate) fn server(&self) -> &RedisServer {
        self.server.as_ref().expect("BUG: a scene that does this to a server needs its own")
    }

    fn given(world: &mut World, url: &str) -> Self {
        // OK to ignore because whoever cannot reach the server hears so from the clients.
        let _ = free(url, world.lock());
        look(world, LANE, url);
        Self { server: None, address: Address { naive: url.to_owned(), tenure: url.to_owned() } }
    }
}

/// Where clients find a server on this port, or a proxy before it.
pub(crate) fn address(world: &World, port: u16) -> Address {
    let naive = format!("redis://127.0.0.1:{port}/");
    Address { tenure: format!("{naive}?max_ttl={}", world.seconds()), naive }
}

/// The settings of Tenure on a server, as it writes them down there.
pub(crate) fn settings(world: &World) -> String {
    format!("guard=on max_ttl={}", world.seconds())
}

/// Has somebody look at a server.
pub(crate) fn look(world: &mut World, lane: &str, url: &str) {
    let (url, lock) = (url.to_owned(), world.lock().to_owned());
    let mut connection: Option<Connection> = None;
    world.watches(lane, move || {
        if connection.is_none() {
            connection = connect(&url);
        }
        let held = redis::cmd("GET").arg(&lock).query::<Option<String>>(connection.as_mut()?);
        held.unwrap_or_else(|_| {
            connection = None;
            None
        })
    });
}

/// Takes away what a half has left, as a scheme without an end does.
pub(crate) fn free(url: &str, lock: &str) -> redis::RedisResult<()> {
    redis::cmd("DEL").arg(lock).query(&mut Client::open(url)?.get_connection_with_timeout(PATIENCE)?)
}

fn connect(url: &str) -> Option<Connection> {
    let connection = Client::open(url).ok()?.get_connection_with_timeout(PATIENCE).ok()?;
    connection.set_read_timeout(Some(PATIENCE)).ok()?;
    Some(connection)
}

/// The lane of a server that is alone.
pub(crate) const LANE: &str = "Redis";
const PATIENCE: Duration = Duration::from_secs(2);
