//! `top`: the most used keys.

use std::pin::pin;
use std::sync::mpsc;
use std::sync::mpsc::{Receiver, Sender};
use std::thread;
use std::time::Duration;

use futures_util::future::{Either, select};
use ratatui::Frame;
use ratatui::crossterm::event;
use ratatui::crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Table};
use serde_json::json;
use tidegate::Limiter;
use tidegate::admin::top_keys::TopKeys;
use tidegate::admin::{Inspector, Ranking};

use crate::args::Top;
use crate::failure::Failure;
use crate::gate_names::GateNames;
use crate::output::{Output, Text, Tone, cell, safe};
use crate::state;
use crate::state::HEADER;
use crate::survey::Survey;
use crate::units::human;

/// Reads all keys once and prints the most used.
pub(crate) async fn once(top: &Top, limiter: &Limiter, out: Output) -> Result<bool, Failure> {
    let ((gate, names), inspector) = (top.gate.read(limiter, out)?, &Inspector::new(limiter)?);
    let survey = Survey::of(inspector, gate.as_deref(), usize::from(top.limit)).await?;
    let shown = survey.ranking.best();
    let mut lines = state::state_table(shown.clone(), &names);
    lines.push(vec![Text(Tone::Faint, format!("{} of {} keys", shown.len(), survey.keys))]);
    lines.extend(survey.notes().into_iter().map(|note| vec![Text(Tone::Warn, note)]));
    let json = json!({
        "namespace": inspector.namespace(),
        "keys": survey.keys,
        "states": shown.clone().map(state::state_json).collect::<Vec<_>>(),
        "notes": survey.notes(),
    });
    out.print(&json, &lines)?;
    Ok(survey.keys > 0)
}

// The terminal view. Another thread reads from Redis, so that key presses work while Redis is slow.

/// The pause between polls for key presses; also the shortest refresh interval.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The content of the screen.
struct View {
    rows: Vec<Vec<Text>>,
    keys_read: u64,
    last_round: Option<u64>,
    /// The error of the last refresh.
    error: Option<String>,
}

enum Message {
    View(View),
    /// The process received a signal to end.
    End,
}

/// Draws until a key press or a signal ends it. Fails before drawing if the first read fails.
pub(crate) fn show(top: &Top, limiter: &Limiter, out: Output) -> Result<bool, Failure> {
    let ((gate, names), inspector) = (top.gate.read(limiter, out)?, Inspector::new(limiter)?);
    let ranking = Ranking::most_used(usize::from(top.limit));
    let mut live = TopKeys::new(inspector, gate, vec![ranking]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(live.refresh())?;
    let first = View::new(&live, &names, None);
    let (sender, receiver) = mpsc::channel();
    let every = top.every.max(POLL_INTERVAL);
    thread::Builder::new().name("tidegate-top".to_owned()).spawn(move || {
        runtime.block_on(refresh_loop(live, names, every, &sender));
    })?;
    let title = format!("tidegate top, every {}", human(every));
    ratatui::run(|terminal| {
        let mut view = first;
        loop {
            terminal.draw(|frame| view.draw(frame, &title, out))?;
            match wait(&receiver)? {
                Some(Message::View(new)) => view = view.updated(new),
                Some(Message::End) => return Ok(true),
                None => {}
            }
        }
    })
}

/// Waits for the next view or the end. Returns `None` if the terminal was resized.
fn wait(receiver: &Receiver<Message>) -> Result<Option<Message>, Failure> {
    loop {
        match receiver.try_recv() {
            Ok(message) => return Ok(Some(message)),
            Err(mpsc::TryRecvError::Disconnected) => return Ok(Some(Message::End)),
            Err(mpsc::TryRecvError::Empty) => {}
        }
        if !event::poll(POLL_INTERVAL)? {
            continue;
        }
        match event::read()? {
            Event::Key(key) if key.kind == KeyEventKind::Press => {
                let is_interrupt =
                    key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c');
                if is_interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                    return Ok(Some(Message::End));
                }
            }
            Event::Resize(..) => return Ok(None),
            _ => {}
        }
    }
}

/// Refreshes and sends views until a signal arrives or the receiver is gone.
async fn refresh_loop(mut live: TopKeys, names: GateNames, every: Duration, sender: &Sender<Message>) {
    let mut end = pin!(end_signal());
    loop {
        let next = async {
            tokio::time::sleep(every).await;
            let error = live.refresh().await.err();
            View::new(&live, &names, error.map(|error| error.to_string()))
        };
        let message = match select(pin!(next), end.as_mut()).await {
            Either::Left((view, _)) => Message::View(view),
            Either::Right(_) => Message::End,
        };
        let is_end = matches!(message, Message::End);
        // After a key press ends the view, the receiver is gone.
        if sender.send(message).is_err() || is_end {
            return;
        }
    }
}

/// Waits for SIGTERM or SIGHUP, so that the terminal is restored before the process exits.
#[cfg(unix)]
async fn end_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut hang_up)) =
        (signal(SignalKind::terminate()), signal(SignalKind::hangup()))
    else {
        return std::future::pending().await;
    };
    select(pin!(terminate.recv()), pin!(hang_up.recv())).await;
}

#[cfg(not(unix))]
async fn end_signal() {
    std::future::pending().await
}

impl View {
    fn new(live: &TopKeys, names: &GateNames, error: Option<String>) -> Self {
        let rows = live.rankings().iter().flat_map(Ranking::best).map(|found| state::row(found, names));
        Self { rows: rows.collect(), keys_read: live.keys_read(), last_round: live.last_round(), error }
    }

    /// Returns the new view. If its refresh failed, keeps the rows of this view.
    fn updated(self, new: Self) -> Self {
        match new.error {
            Some(_) => Self { error: new.error, ..self },
            None => new,
        }
    }

    fn draw(&self, frame: &mut Frame<'_>, title: &str, out: Output) {
        let style = |tone: Tone| if out.is_colored() { style(tone) } else { Style::new() };
        let [head, body, foot] =
            Layout::vertical([Constraint::Length(1), Constraint::Fill(1), Constraint::Length(1)])
                .areas(frame.area());
        let counted = match self.last_round {
            Some(keys) => format!("{keys} keys"),
            None => format!("{} keys so far", self.keys_read),
        };
        let head_line = Line::from(vec![
            Span::raw(title.to_owned()),
            Span::styled(format!("   {counted}"), style(Tone::Faint)),
        ]);
        frame.render_widget(Paragraph::new(head_line), head);

        let shown: Vec<Vec<(Tone, String)>> = self
            .rows
            .iter()
            .take(usize::from(body.height.saturating_sub(1)))
            .map(|row| row.iter().map(|Text(tone, text)| (*tone, cell(text))).collect())
            .collect();
        let widths = (0..HEADER.len()).map(|column| {
            let cells = shown.iter().filter_map(|row| Some(row.get(column)?.1.chars().count()));
            let widest = cells.chain([HEADER[column].len()]).max().unwrap_or(0);
            let width = u16::try_from(widest).unwrap_or(u16::MAX);
            // A long key is shortened before the other columns.
            if column == 0 { Constraint::Max(width) } else { Constraint::Length(width) }
        });
        let rows = shown.iter().map(|row| {
            Row::new(
                row.iter().map(|(tone, text)| Span::styled(text.as_str(), style(*tone))).collect::<Vec<_>>(),
            )
        });
        let table = Table::new(rows, widths.collect::<Vec<_>>()).column_spacing(2);
        let header = Row::new(HEADER).style(Style::new().add_modifier(Modifier::BOLD));
        frame.render_widget(table.header(header), body);

        let foot_line = match &self.error {
            Some(error) => Span::styled(safe(error).into_owned(), style(Tone::Bad)),
            None => Span::styled("q quits", style(Tone::Faint)),
        };
        frame.render_widget(Paragraph::new(Line::from(foot_line)), foot);
    }
}

fn style(tone: Tone) -> Style {
    match tone {
        Tone::Plain => Style::new(),
        Tone::Good => Style::new().fg(Color::Green),
        Tone::Bad => Style::new().fg(Color::Red),
        Tone::Warn => Style::new().fg(Color::Yellow),
        Tone::Faint => Style::new().add_modifier(Modifier::DIM),
    }
}
