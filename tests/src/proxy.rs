//! A proxy in front of the controller's socket that can lose replies.
//!
//! The request arrives and is carried out, the answer never comes back: what a client sees of a network that fails, or of a
//! controller that dies, at the worst moment.

use crate::http::connect_as;
use crate::users::User;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A running proxy. Its threads end with the test's process.
#[derive(Debug)]
pub struct Proxy {
    path: PathBuf,
    to_lose: Arc<AtomicU32>,
    lost: Arc<AtomicU32>,
}

impl Proxy {
    /// Listens at `path` and passes on to `controller`, as this user whoever connects.
    pub fn start(path: &Path, controller: &Path, user: &User) -> Proxy {
        let listener = UnixListener::bind(path).expect("a new socket can be bound");
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o666))
            .expect("our own socket's mode can be set");
        let (to_lose, lost) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let proxy = Proxy { path: path.to_path_buf(), to_lose: to_lose.clone(), lost: lost.clone() };
        let (controller, user) = (controller.to_path_buf(), user.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // A controller that is away: the client sees its connection closed.
                let Ok(server) = connect_as(&controller, &user) else { continue };
                let (to_lose, lost) = (to_lose.clone(), lost.clone());
                std::thread::spawn(move || carry(client, server, &to_lose, &lost));
            }
        });
        proxy
    }

    /// Its address, as `BC_SERVER` takes it.
    pub fn server(&self) -> String {
        format!("unix://{}", self.path.display())
    }

    /// Loses the next `count` replies.
    pub fn lose(&self, count: u32) {
        self.to_lose.store(count, Ordering::SeqCst);
    }

    /// How many replies were lost so far.
    pub fn lost(&self) -> u32 {
        self.lost.load(Ordering::SeqCst)
    }
}

fn carry(client: UnixStream, server: UnixStream, to_lose: &AtomicU32, lost: &AtomicU32) {
    let (Ok(mut from_client), Ok(mut to_server)) = (client.try_clone(), server.try_clone()) else { return };
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from_client, &mut to_server);
        let _ = to_server.shutdown(Shutdown::Write);
    });
    let (mut from_server, mut to_client) = (server, client);
    let mut chunk = [0; 64 << 10];
    while let Ok(n @ 1..) = from_server.read(&mut chunk) {
        let losing =
            to_lose.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        if losing {
            lost.fetch_add(1, Ordering::SeqCst);
            break;
        }
        if to_client.write_all(&chunk[..n]).is_err() {
            break;
        }
    }
    let _ = to_client.shutdown(Shutdown::Both);
    let _ = from_server.shutdown(Shutdown::Both);
}
