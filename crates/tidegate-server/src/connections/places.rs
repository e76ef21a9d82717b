//! The places of a port's connections, and its guests: connections without a place, which yield to newer ones.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::Client;

/// How many guests a port has. Beyond it, the oldest one is closed, so that clients that hold connections keep no other
/// client out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guests {
    /// The maximum for all clients together.
    pub(crate) max: usize,
    /// The maximum for one client.
    pub(crate) max_per_client: usize,
}

/// The places of a port.
#[derive(Debug)]
pub(super) struct Places {
    max: usize,
    guests: Guests,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    /// Connections with a place.
    placed: usize,
    /// The oldest first.
    guests: VecDeque<Guest>,
    next_id: u64,
}

#[derive(Debug)]
struct Guest {
    id: u64,
    client: Client,
    /// Tells the connection that it is displaced.
    displaced: oneshot::Sender<()>,
}

/// The place of a connection, or its stay as a guest. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Place(Arc<Stay>);

#[derive(Debug)]
struct Stay {
    places: Arc<Places>,
    id: u64,
    client: Client,
    has_place: AtomicBool,
}

impl Places {
    pub(super) fn new(max: usize, guests: Guests) -> Arc<Self> {
        Arc::new(Self { max, guests, open: Mutex::default() })
    }

    /// Lets a connection in as a guest. The receiver gets a message when it is displaced.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr) -> (Place, oneshot::Receiver<()>) {
        let client = Client::new(address);
        let (displaced, receiver) = oneshot::channel();
        let mut open = self.lock();
        let id = open.next_id;
        open.next_id += 1;
        open.guests.push_back(Guest { id, client, displaced });
        let of_client = |guest: &Guest| guest.client == client;
        let oldest = match open.guests.iter().filter(|guest| of_client(guest)).count() {
            count if count > self.guests.max_per_client => open.guests.iter().position(of_client),
            _ if open.guests.len() > self.guests.max => Some(0),
            _ => None,
        };
        if let Some(oldest) = oldest.and_then(|oldest| open.guests.remove(oldest)) {
            // An error means that the connection has just ended.
            let _ = oldest.displaced.send(());
        }
        drop(open);
        (
            Place(Arc::new(Stay { places: self.clone(), id, client, has_place: AtomicBool::new(false) })),
            receiver,
        )
    }

    /// Ignores poisoning: each change is complete before the lock is released.
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    /// Removes a guest. Returns whether it was one.
    fn remove_guest(&mut self, id: u64) -> bool {
        let at = self.guests.iter().position(|guest| guest.id == id);
        at.and_then(|at| self.guests.remove(at)).is_some()
    }
}

impl Place {
    /// Gives a guest a place, if one is free. A guest that was displaced before gets none.
    pub(crate) fn take(&self) {
        let Stay { places, id, has_place, .. } = &*self.0;
        if self.is_guest() {
            let mut open = places.lock();
            if open.placed < places.max && open.remove_guest(*id) {
                open.placed += 1;
                has_place.store(true, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn is_guest(&self) -> bool {
        !self.0.has_place.load(Ordering::Relaxed)
    }

    pub(crate) fn client(&self) -> Client {
        self.0.client
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        let mut open = self.places.lock();
        match *self.has_place.get_mut() {
            true => open.placed -= 1,
            false => drop(open.remove_guest(self.id)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADA: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const BOB: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    fn is_displaced((_, receiver): &mut (Place, oneshot::Receiver<()>)) -> bool {
        receiver.try_recv().is_ok()
    }

    #[test]
    fn newest_guest_displaces_the_oldest_of_its_client_then_the_oldest_of_all() {
        let places = Places::new(1, Guests { max: 3, max_per_client: 2 });
        let mut guests: Vec<_> = [ADA, BOB, ADA, ADA].map(|address| places.enter(address)).into();
        let displaced: Vec<bool> = guests.iter_mut().map(is_displaced).collect();
        assert_eq!(displaced, [true, false, false, false]);
        guests.push(places.enter(IpAddr::V4([10, 0, 0, 3].into())));
        let displaced: Vec<bool> = guests.iter_mut().map(is_displaced).collect();
        assert_eq!(displaced, [false, true, false, false, false], "the one before is told only once");
    }

    #[test]
    fn guest_with_a_place_is_never_displaced_and_leaves_room() {
        let places = Places::new(1, Guests { max: 1, max_per_client: 1 });
        let mut placed = places.enter(ADA);
        placed.0.take();
        placed.0.take();
        let mut waits = places.enter(ADA);
        waits.0.take();
        assert!(!placed.0.is_guest() && waits.0.is_guest(), "there is one place");
        let mut next = places.enter(BOB);
        assert!(!is_displaced(&mut placed) && is_displaced(&mut waits) && !is_displaced(&mut next));
        drop(placed);
        waits.0.take();
        next.0.take();
        assert!(waits.0.is_guest(), "it was displaced");
        assert!(!next.0.is_guest());
        drop((waits, next));
        let open = places.lock();
        assert_eq!((open.placed, open.guests.len()), (0, 0));
    }
}
