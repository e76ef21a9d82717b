//! Measures scripts without a client: user CPU time of Redis's main thread per key, in interleaved rounds.

use redis::{Cmd, Connection, ConnectionLike, Value};
use serde_json::{Value as Json, json};
use tidegate::script::Script;

use crate::rounds::median;
use crate::server::Target;
use crate::subjects::RUN;
use crate::{Failure, progress};

/// Distinct keys of a subject, per key of its calls.
const KEYS: u64 = 100;
/// The last argument of bounded scripts: a time that does not come during a run, with as many digits as any.
pub(crate) const BOUND_US: u64 = 4_000_000_000_000_000;
/// Calls that are in flight together.
const PIPELINED: usize = 50;

/// The calls of one case, which one figure summarizes.
pub(crate) struct Subject {
    case: &'static str,
    name: &'static str,
    script: Text,
    /// Keys per call, or groups of two keys.
    width: u64,
    fill: Box<dyn Fn(&mut Call<'_>)>,
    /// µs per key, or per group, of each round.
    us: Vec<f64>,
}

pub(crate) enum Text {
    Of(&'static Script),
    ByHand(&'static str),
}

/// A call to be filled.
pub(crate) struct Call<'a> {
    pub(crate) command: &'a mut Cmd,
    pub(crate) width: u64,
    /// The number of the first key, and of the first message.
    first: u64,
}

/// Runs `prepare` before each turn of a subject.
pub(crate) fn run(
    target: &Target,
    rounds: usize,
    calls: u64,
    mut subjects: Vec<Subject>,
    prepare: impl Fn(&mut Connection) -> Result<(), Failure>,
) -> Result<Vec<Json>, Failure> {
    let mut connection = redis::Client::open(target.url())?.get_connection()?;
    for subject in &subjects {
        redis::cmd("SCRIPT").arg("LOAD").arg(subject.script.text()).exec(&mut connection)?;
    }
    let mut sent = 0;
    for round in 0..rounds {
        let (mut case, mut first) = ("", sent);
        for subject in &mut subjects {
            prepare(&mut connection)?;
            // The subjects of a case get the same numbers, so that settles find their reservations.
            if subject.case != case {
                (case, first) = (subject.case, sent);
            }
            progress(&format!("scripts: round {} of {rounds}", round + 1));
            let calls = (calls / subject.width).max(2 * PIPELINED as u64);
            let packed: Vec<Vec<u8>> =
                (0..calls).map(|call| subject.packed(first + call * subject.width)).collect();
            sent = sent.max(first + calls * subject.width);
            let before = target.user_us()?;
            send(&mut connection, &packed)?;
            subject.us.push((target.user_us()? - before) / (calls * subject.width) as f64);
        }
    }
    progress("");
    Ok(subjects.iter().map(|subject| subject.json(&subjects)).collect())
}

/// Returns the rows as a Markdown table. The first subject of each case is the unit of its speeds.
pub(crate) fn table(rows: &[Json], unit: &str) -> String {
    let mut text = format!("| case | script | µs of Redis per key or group | speed, {unit} = 1 |\n");
    text.push_str("| --- | --- | --- | --- |\n");
    for row in rows {
        let number = |name: &str| row[name].as_f64().unwrap_or(f64::NAN);
        let words = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
        text.push_str(&format!(
            "| {} | {} | {:.2} | {:.2} |\n",
            words("case"),
            words("script"),
            number("us"),
            number("ratio")
        ));
    }
    text
}

/// Returns a Redis key of the run.
pub(crate) fn key(kind: &str, number: u64) -> String {
    format!("{}:2:{kind}:user:{number}", *RUN)
}

impl Text {
    fn text(&self) -> &'static str {
        match self {
            Self::Of(script) => script.text,
            Self::ByHand(text) => text,
        }
    }

    fn digest(&self) -> String {
        match self {
            Self::Of(script) => script.digest().to_owned(),
            Self::ByHand(text) => redis::Script::new(text).get_hash().to_owned(),
        }
    }
}

impl Subject {
    pub(crate) fn new(
        case: &'static str,
        name: &'static str,
        script: Text,
        width: u64,
        fill: fn(&mut Call<'_>),
    ) -> Self {
        Self::boxed(case, name, script, width, Box::new(fill))
    }

    /// Makes a subject whose calls depend on values that are captured.
    pub(crate) fn boxed(
        case: &'static str,
        name: &'static str,
        script: Text,
        width: u64,
        fill: Box<dyn Fn(&mut Call<'_>)>,
    ) -> Self {
        Self { case, name, script, width, fill, us: Vec::new() }
    }

    fn packed(&self, first: u64) -> Vec<u8> {
        let mut command = redis::cmd("EVALSHA");
        command.arg(self.script.digest());
        (self.fill)(&mut Call { command: &mut command, width: self.width, first });
        if let Text::Of(Script { is_bounded: true, .. }) = self.script {
            command.arg(BOUND_US);
        }
        command.get_packed_command()
    }

    fn json(&self, all: &[Self]) -> Json {
        let base = all.iter().find(|other| other.case == self.case).unwrap_or(self);
        let ratio = median(base.us.iter().zip(&self.us).map(|(base, us)| base / us).collect());
        json!({ "case": self.case, "script": self.name, "us": median(self.us.clone()), "ratio": ratio })
    }
}

impl Call<'_> {
    /// Adds the number of keys with `more` others, then those, then for each number a key of each kind.
    pub(crate) fn keys(&mut self, kinds: &[&str], more: &[String]) {
        self.command.arg(self.width * kinds.len() as u64 + more.len() as u64).arg(more);
        for number in self.numbers() {
            for kind in kinds {
                self.command.arg(self.key(kind, number));
            }
        }
    }

    /// Returns the key of this number. Each is that of a hundred calls in a row.
    pub(crate) fn key(&self, kind: &str, number: u64) -> String {
        key(kind, number % (KEYS * self.width))
    }

    /// Returns a number for each key of the call. It increases from call to call, as those of messages do.
    pub(crate) fn numbers(&self) -> std::ops::Range<u64> {
        self.first..self.first + self.width
    }
}

/// Sends the calls, some in flight together. Fails if a reply is an error, also of one key.
fn send(connection: &mut Connection, calls: &[Vec<u8>]) -> Result<(), Failure> {
    for part in calls.chunks(PIPELINED) {
        for reply in connection.req_packed_commands(&part.concat(), 0, part.len())? {
            match reply {
                Value::Array(row) if row.iter().all(|number| matches!(number, Value::Int(_))) => {}
                other => return Err(format!("unexpected reply: {other:?}").into()),
            }
        }
    }
    Ok(())
}
