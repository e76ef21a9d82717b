//! The terminal view. Looking is another thread's work, so that keys are heard whatever Redis does.

use std::pin::pin;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use futures_util::future::{Either, select};
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Table};
use tidegate::Limiter;
use tidegate::internals::Inspector;

use super::Watch;
use crate::args::Top;
use crate::failure::Failure;
use crate::output::{Output, Text, Tone, safe};
use crate::state::{HEADER, cells};
use crate::units::human;

/// How soon a key that is pressed is heard.
const SOON: Duration = Duration::from_millis(50);

/// What there is to see.
struct View {
    rows: Vec<Vec<Text>>,
    looked_at: u64,
    last_round: Option<u64>,
    /// Why nothing new is seen.
    error: Option<String>,
}

enum Said {
    View(View),
    /// By a signal.
    End,
}

/// Draws until it is told to stop. Fails at once where Redis cannot be looked into.
pub(crate) fn show(top: &Top, limiter: &Limiter, out: Output) -> Result<bool, Failure> {
    let inspector = Inspector::new(limiter)?;
    let mut watch = Watch::new(inspector, top.gate.clone(), usize::from(top.limit));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(watch.look())?;
    let first = View::new(&watch, None);
    let (sender, receiver) = mpsc::channel();
    let every = top.every.max(SOON);
    thread::Builder::new().name("tidegate-top".to_owned()).spawn(move || {
        runtime.block_on(look(watch, every, &sender));
    })?;
    let title = format!("tidegate top, every {}", human(every));
    ratatui::run(|terminal| {
        let mut view = first;
        loop {
            terminal.draw(|frame| view.draw(frame, &title, out))?;
            match wait(&receiver)? {
                Some(Said::View(new)) => view = view.followed_by(new),
                Some(Said::End) => return Ok(true),
                None => {}
            }
        }
    })
}

/// The next view, or the end; `None` where the terminal has changed.
fn wait(receiver: &Receiver<Said>) -> Result<Option<Said>, Failure> {
    loop {
        match receiver.try_recv() {
            Ok(said) => return Ok(Some(said)),
            Err(mpsc::TryRecvError::Disconnected) => return Ok(Some(Said::End)),
            Err(mpsc::TryRecvError::Empty) => {}
        }
        if !event::poll(SOON)? {
            continue;
        }
        match event::read()? {
            Event::Key(key) if key.kind == KeyEventKind::Press => {
                let is_stop = key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c');
                if is_stop || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                    return Ok(Some(Said::End));
                }
            }
            Event::Resize(..) => return Ok(None),
            _ => {}
        }
    }
}

async fn look(mut watch: Watch, every: Duration, sender: &Sender<Said>) {
    let mut end = pin!(ended());
    loop {
        let next = async {
            tokio::time::sleep(every).await;
            let error = watch.look().await.err();
            View::new(&watch, error.map(|error| error.to_string()))
        };
        let said = match select(pin!(next), end.as_mut()).await {
            Either::Left((view, _)) => Said::View(view),
            Either::Right(_) => Said::End,
        };
        let is_end = matches!(said, Said::End);
        // Nobody listens where it was ended by a key.
        if sender.send(said).is_err() || is_end {
            return;
        }
    }
}

/// Until this is asked to end, so that the terminal is left as it was.
#[cfg(unix)]
async fn ended() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut end), Ok(mut hang_up)) = (signal(SignalKind::terminate()), signal(SignalKind::hangup()))
    else {
        return std::future::pending().await;
    };
    select(pin!(end.recv()), pin!(hang_up.recv())).await;
}

#[cfg(not(unix))]
async fn ended() {
    std::future::pending().await
}

impl View {
    fn new(watch: &Watch, error: Option<String>) -> Self {
        let rows = watch.shown().iter().map(|found| {
            let name = &found.name;
            [vec![name.written.as_str().into(), name.gate.as_str().into()], cells(found)].concat()
        });
        Self { rows: rows.collect(), looked_at: watch.looked_at, last_round: watch.last_round, error }
    }

    /// What was seen last stays where nothing new is.
    fn followed_by(self, new: Self) -> Self {
        match new.error {
            Some(_) => Self { error: new.error, ..self },
            None => new,
        }
    }

    fn draw(&self, frame: &mut Frame<'_>, title: &str, out: Output) {
        let style = |tone: Tone| if out.is_coloured() { style(tone) } else { Style::new() };
        let [head, body, foot] =
            Layout::vertical([Constraint::Length(1), Constraint::Fill(1), Constraint::Length(1)])
                .areas(frame.area());
        let counted = match self.last_round {
            Some(keys) => format!("{keys} keys"),
            None => format!("{} keys so far", self.looked_at),
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
            .map(|row| row.iter().map(|Text(tone, text)| (*tone, safe(text).into_owned())).collect())
            .collect();
        let widths = (0..HEADER.len()).map(|column| {
            let cells = shown.iter().filter_map(|row| Some(row.get(column)?.1.chars().count()));
            let widest = cells.chain([HEADER[column].len()]).max().unwrap_or(0);
            let width = u16::try_from(widest).unwrap_or(u16::MAX);
            // A long key gives way to the rest.
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
