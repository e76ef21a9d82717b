//! A discrete-event simulation of regions: clocks, replicators, a network with faults, and operators. It asserts the
//! bounds of each mode at every admission and denial.

mod defects;
mod escrow;
mod faults;
mod gossip;
mod replicators;
mod traffic;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use tidegate::Quota;
use tidegate::regions::reference::{Batch, Cursor, Field, Id, Mode, Region};

pub use self::defects::Defect;
pub use self::faults::Fault;
pub use self::traffic::Op;
use super::oracle::{Charge, Pooled, rate_and_per};

pub const KEY: &str = "user:42";
pub const START_US: u64 = 1_767_225_600_000_000;

#[derive(Clone, Debug)]
pub struct Setup {
    pub modes: Vec<Mode>,
    pub delay_us: u64,
    pub jitter_us: u64,
    /// Messages lost, of 1,000.
    pub lost: u32,
    pub flush_us: u64,
    pub beat_us: u64,
    pub readers: usize,
    /// Batches that wait before they are applied, of 1,000, and how long at most.
    pub paused: u32,
    pub pause_us: u64,
    pub retention_us: u64,
    pub most_items: usize,
    /// After how much silence a peer is cut off, if the gate has the share policy.
    pub cut_off_us: Option<u64>,
    pub fresh_us: u64,
    pub offsets_us: Vec<i64>,
    /// The mean time between takes of each region; 0: none.
    pub gaps_us: Vec<u64>,
    /// Every so often, the demand moves to the next region; 0: never.
    pub flip_us: u64,
    pub max_cost: u64,
    pub max_n: u64,
    /// Other operations, of 1,000.
    pub refunds: u32,
    pub penalties: u32,
    pub blocks: u32,
    pub resets: u32,
    /// Leases: taken, a part of one spent, and the rest of one given back.
    pub leases: u32,
    pub ends_us: u64,
    pub faults: Vec<(u64, Fault)>,
    pub defect: Option<Defect>,
}

/// The figures of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub admitted: u64,
    pub denied: u64,
    /// The largest over-admission, in thousandths of the limit.
    pub over: i64,
    /// The largest over-admission, in thousandths of its bound from the staleness.
    pub of_bound: i64,
    pub forgiven: u64,
    pub gaps: u64,
    /// The largest loss of escrow by a wipe, a failover or a reset, in thousandths of the limit.
    pub lost: i64,
}

#[derive(Clone, Debug)]
struct Read {
    to: usize,
    from: usize,
    reader: usize,
    attempt: u64,
    expected: Option<Cursor>,
    read_us: u64,
    batch: Option<Batch>,
}

#[derive(Debug)]
enum Event {
    Traffic(usize),
    Flush(usize),
    Start { to: usize, from: usize, reader: usize, attempt: u64 },
    AtPeer(Box<Read>),
    Beat { peer: usize, token: u64 },
    Reply(u64),
    Apply(u64),
    Settle(usize),
    Fault(Fault),
    Flip,
}

#[derive(Clone, Debug)]
struct Node {
    region: Region,
    mode: Mode,
    offset_us: i64,
    /// The charges of each field in the outbox.
    pending: Vec<(Field, Charges)>,
    attempts: Vec<Vec<u64>>,
    waiting: Vec<(u64, Read)>,
    is_flushing: bool,
    is_stopped: bool,
    pause_next_us: u64,
    /// Units that do not count here.
    forgiven: u64,
    /// The longest time from a charge to its application here.
    late_us: u64,
    forward_us: u64,
    back_us: u64,
    most_refunded: i64,
    last_cut: u64,
}

/// A take that can be given back.
#[derive(Clone, Copy, Debug)]
struct Held {
    region: usize,
    units: u64,
    stamp: u64,
    charged_us: u64,
    window_us: u64,
}

pub struct World {
    pub setup: Setup,
    rng: fastrand::Rng,
    now: u64,
    serial: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events: HashMap<u64, Event>,
    nodes: Vec<Node>,
    snapshots: Vec<Option<(Node, Vec<bool>)>>,
    /// The charges of each change of an entry.
    sent: HashMap<(usize, u64, Id), Vec<(Field, Charges)>>,
    batches: BTreeMap<u64, Read>,
    cut_until: Vec<Vec<u64>>,
    pooled: Pooled,
    charges: Vec<Charge>,
    /// Charges before this one no longer matter.
    alive_from: usize,
    takes: Vec<Held>,
    /// Leases that a process of a region spends from.
    leases: Vec<Held>,
    /// The most units that the leases of each region held.
    most_leased: Vec<u64>,
    /// The pooled state, if leases charged units when they spend them.
    spent: Pooled,
    blocks: Vec<(u64, u64, usize)>,
    hot: usize,
    /// Escrow: how much more than the limit the losses of state allow, in ticks times the weights.
    allowed: i128,
    full_most: i128,
    /// Changes of a level between quotas with other ticks: each rounds by at most half a tick.
    conversions: i128,
    is_overridden: bool,
    is_lossy: bool,
    has_reset: bool,
    has_unblocked: bool,
    pub seen: Seen,
}

type Checked = Result<(), String>;

/// Indices of the ledger.
type Charges = Vec<usize>;

impl World {
    pub fn new(setup: Setup, seed: u64) -> Self {
        let count = setup.modes.len();
        let mut rng = fastrand::Rng::with_seed(seed);
        let quota = quota_of(&setup.modes[0]);
        let per = common_per(&setup);
        let nodes = (0..count).map(|name| {
            let mode = setup.modes[name];
            let weight = if let Mode::Escrow(escrow) = mode { escrow.weight } else { count as u64 };
            let mut region = Region::new(name as u16, weight, rng.u64(1..));
            region.fresh_us = setup.fresh_us;
            let offset_us = setup.offsets_us[name];
            Node {
                region,
                mode,
                offset_us,
                pending: Vec::new(),
                attempts: vec![vec![0; setup.readers]; count],
                waiting: Vec::new(),
                is_flushing: false,
                is_stopped: false,
                pause_next_us: 0,
                forgiven: 0,
                late_us: 0,
                forward_us: 0,
                back_us: 0,
                most_refunded: 0,
                last_cut: 0,
            }
        });
        let mut nodes: Vec<Node> = nodes.collect();
        // The regions have been in contact before the first charge.
        for from in 0..count {
            let position = (nodes[from].region.replication.epoch, (0, 0));
            for to in (0..count).filter(|to| *to != from) {
                let heard = START_US.wrapping_add_signed(setup.offsets_us[to]);
                let replication = &mut nodes[to].region.replication;
                replication.cursors.insert(from as u16, Cursor { position, began: (0, 0) });
                replication.heard.insert(from as u16, heard);
            }
        }
        let mut world = Self {
            rng,
            now: START_US,
            serial: 0,
            queue: BinaryHeap::new(),
            events: HashMap::new(),
            nodes,
            snapshots: vec![None; count],
            sent: HashMap::new(),
            batches: BTreeMap::new(),
            cut_until: vec![vec![0; count]; count],
            pooled: Pooled::new(&quota, per),
            spent: Pooled::new(&quota, per),
            leases: Vec::new(),
            most_leased: vec![0; count],
            charges: Vec::new(),
            alive_from: 0,
            takes: Vec::new(),
            blocks: Vec::new(),
            hot: 0,
            allowed: 0,
            full_most: i128::from(quota.limit()) * per,
            conversions: 0,
            is_overridden: false,
            is_lossy: false,
            has_reset: false,
            has_unblocked: false,
            seen: Seen::default(),
            setup,
        };
        for to in 0..count {
            for from in (0..count).filter(|from| *from != to) {
                for reader in 0..world.setup.readers {
                    let at = world.rng.u64(0..10_000);
                    world.at(at, Event::Start { to, from, reader, attempt: 0 });
                }
            }
            if world.setup.gaps_us[to] > 0 {
                let at = world.rng.u64(0..=world.setup.gaps_us[to]);
                world.at(at, Event::Traffic(to));
            }
        }
        for (at, fault) in world.setup.faults.clone() {
            world.at(at, Event::Fault(fault));
        }
        if world.setup.flip_us > 0 {
            world.at(world.setup.flip_us, Event::Flip);
        }
        world
    }

    fn at(&mut self, in_us: u64, event: Event) {
        self.serial += 1;
        self.queue.push(Reverse((self.now + in_us, self.serial)));
        self.events.insert(self.serial, event);
    }

    fn local(&self, region: usize) -> u64 {
        self.now.wrapping_add_signed(self.nodes[region].offset_us)
    }

    fn count(&self) -> usize {
        self.nodes.len()
    }

    /// Runs until the end of the traffic, then `quiet_us`, and longer until all regions have caught up.
    pub fn run(&mut self, quiet_us: u64) -> Checked {
        let end = START_US + self.setup.ends_us + quiet_us;
        self.run_until(end)?;
        for more in 1..20 {
            if self.is_lossy || (0..self.count()).all(|region| self.has_caught_up(region)) {
                break;
            }
            self.run_until(end + more * quiet_us)?;
        }
        Ok(())
    }

    fn has_caught_up(&mut self, region: usize) -> bool {
        match self.setup.modes[0] {
            Mode::Gossip(_) => self.unseen(region).next().is_none(),
            Mode::Escrow(_) => self.is_at_rest(region),
        }
    }

    fn run_until(&mut self, end: u64) -> Checked {
        while let Some(Reverse((at, serial))) =
            self.queue.peek().copied().filter(|Reverse((at, _))| *at <= end)
        {
            self.queue.pop();
            self.now = at;
            let event = self.events.remove(&serial).unwrap();
            self.step(event).map_err(|error| format!("after {} us: {error}", self.now - START_US))?;
        }
        self.now = end;
        Ok(())
    }

    fn step(&mut self, event: Event) -> Checked {
        let changes_keys =
            !matches!(event, Event::Start { .. } | Event::AtPeer(_) | Event::Beat { .. } | Event::Reply(_));
        match event {
            Event::Traffic(region) => self.traffic(region)?,
            Event::Apply(id) => self.apply(id)?,
            Event::Fault(fault) => self.fault(fault)?,
            Event::Settle(region) => self.settle(region),
            Event::Flush(region) => self.flush(region),
            Event::Start { to, from, reader, attempt } => self.start(to, from, reader, attempt),
            Event::AtPeer(read) => self.at_peer(*read, false),
            Event::Beat { peer, token } => {
                let waiting = &mut self.nodes[peer].waiting;
                let index = waiting.iter().position(|(of, _)| *of == token);
                let read = index.map(|index| waiting.swap_remove(index).1);
                if let Some(read) = read {
                    self.at_peer(read, true);
                }
            }
            Event::Reply(id) => self.reply(id),
            Event::Flip => {
                self.hot = (self.hot + 1) % self.count();
                self.at(self.setup.flip_us, Event::Flip);
            }
        }
        if self.is_overridden && changes_keys {
            self.conversions += 1;
        }
        if changes_keys && matches!(self.setup.modes[0], Mode::Escrow(_)) {
            self.check_escrow_now()
        } else {
            Ok(())
        }
    }
}

pub fn quota_of(mode: &Mode) -> Quota {
    match mode {
        Mode::Gossip(gossip) => gossip.quota,
        Mode::Escrow(escrow) => escrow.quota,
    }
}

/// Returns a number of ticks per unit in which the ticks of every quota of a run are whole.
fn common_per(setup: &Setup) -> i128 {
    let of_faults = setup.faults.iter().filter_map(|(_, fault)| match fault {
        Fault::Override { quota, .. } => Some(*quota),
        _ => None,
    });
    let pers = setup.modes.iter().map(quota_of).chain(of_faults).map(|quota| rate_and_per(&quota).1);
    pers.fold(1, |common, per| common / gcd(common, per) * per)
}

fn gcd(a: i128, b: i128) -> i128 {
    if b == 0 { a } else { gcd(b, a % b) }
}
