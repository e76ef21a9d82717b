//! The command line of tidegate, documented in `docs/operate/cli.md`.

mod args;
mod change;
mod check;
mod confirm;
mod connect;
mod failure;
mod gate_list;
mod gate_names;
mod given_key;
mod holders;
mod holds;
mod log;
mod option_file;
mod output;
mod overrides;
mod quota;
mod redis_url;
mod regions;
mod request;
mod rule_document;
mod rules;
mod serve;
mod state;
mod stored_quota;
mod survey;
mod top;
mod units;

use std::env;
use std::ffi::OsString;
use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory, FromArgMatches};
use clap_complete::CompleteEnv;
use clap_complete::env::Shells;

use self::serve::relations;
use crate::args::{Cli, Command};
use crate::failure::Failure;
use crate::output::Output;
use crate::redis_url::redact_urls;
use crate::serve::arguments::MergedArguments;
use crate::serve::{arguments, effective};

/// Gives memory back to the system by a thread of its own, within about 10 s. That of glibc keeps what 10,000 connections
/// took.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    // Ends the process if a shell asks for completions.
    CompleteEnv::with_factory(Cli::command).complete();
    let code = run_program();
    log::end();
    code
}

/// Runs the command of the arguments, and reports its failure. Returns the exit code.
fn run_program() -> ExitCode {
    let arguments: Vec<OsString> = env::args_os().collect();
    let is_json = arguments.iter().any(|argument| argument == "--json");
    let merged = match arguments::merge(arguments) {
        Ok(merged) => merged,
        Err(failure) => return report(&failure, is_json, "", &[]),
    };
    let (cli, matches) = match parse(&merged) {
        Ok(parsed) => parsed,
        Err(error) => return report_arguments(&error, &merged.arguments),
    };
    let out = Output::new(cli.json);
    match run(&cli, &matches, &merged, out) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            let hint = match failure.exit_code() {
                3 => cli.redis.tried_servers(&failure),
                _ => merged.places(&failure.to_string()),
            };
            report(&failure, cli.json, &hint, &merged.arguments)
        }
    }
}

fn parse(merged: &MergedArguments) -> Result<(Cli, ArgMatches), clap::Error> {
    let matches = Cli::command().try_get_matches_from(&merged.arguments)?;
    let mut cli = Cli::from_arg_matches(&matches)?;
    cli.redis.urls_are_hidden = merged.urls_are_hidden;
    cli.redis.password.clone_from(&merged.password);
    Ok((cli, matches))
}

/// Prints a failure, without the passwords of these arguments. Returns its exit code.
fn report(failure: &Failure, is_json: bool, hint: &str, merged: &[OsString]) -> ExitCode {
    let code = failure.exit_code();
    if code > 0 {
        output::fail(is_json, code, &redact_urls(format!("{failure}{hint}"), arguments(merged)));
    }
    ExitCode::from(code)
}

/// Prints the help text, or an error in the arguments. The message may contain arbitrary argument text, also
/// a URL that is in the place of another argument.
fn report_arguments(error: &clap::Error, merged: &[OsString]) -> ExitCode {
    if !error.use_stderr() {
        // A failed write loses only the help text, which does not affect the exit code.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let message = redact_urls(error.to_string(), arguments(merged));
    output::fail(false, 2, message.trim_start_matches("error: "));
    ExitCode::from(2)
}

/// Returns the arguments of the command line, and those that its settings add.
fn arguments(merged: &[OsString]) -> impl Iterator<Item = String> {
    let all = env::args_os().chain(merged.iter().cloned());
    all.map(|argument| argument.to_string_lossy().into_owned())
}

/// Runs the command. Returns false for a negative result, which exits with 1.
fn run(cli: &Cli, matches: &ArgMatches, merged: &MergedArguments, out: Output) -> Result<bool, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (redis, json) = (&cli.redis, cli.json);
    match &cli.command {
        Command::Check(check) => {
            runtime.block_on(async { check::run(check, true, &redis.limiter(json)?, out).await })
        }
        Command::Peek(check) => {
            runtime.block_on(async { check::run(check, false, &redis.limiter(json)?, out).await })
        }
        Command::Inspect(inspect) => {
            runtime.block_on(async { state::run(inspect, &redis.limiter(json)?, out).await })
        }
        Command::Top(top) => {
            let limiter = redis.limiter(json)?;
            match !top.once && out.is_screen() {
                true => top::show(top, &limiter, out),
                false => runtime.block_on(top::once(top, &limiter, out)),
            }
        }
        Command::Reset(reset) => {
            runtime.block_on(async { change::reset(reset, &redis.limiter(json)?, out).await })
        }
        Command::Block(block) => {
            runtime.block_on(async { change::block(block, &redis.limiter(json)?, out).await })
        }
        Command::Unblock(unblock) => {
            runtime.block_on(async { change::unblock(unblock, &redis.limiter(json)?, out).await })
        }
        Command::Forget(forget) => {
            runtime.block_on(async { change::forget(forget, &redis.limiter(json)?, out).await })
        }
        Command::Switch(switch) => {
            runtime.block_on(async { change::switch(switch, &redis.limiter(json)?, out).await })
        }
        Command::Override(args) => {
            runtime.block_on(async { change::set_override(args, &redis.limiter(json)?, out).await })
        }
        Command::Overrides => runtime.block_on(async { overrides::list(&redis.limiter(json)?, out).await }),
        Command::Gates(rules) => {
            runtime.block_on(async { gate_list::list(rules, &redis.limiter(json)?, out).await })
        }
        Command::Regions => runtime.block_on(async { regions::show(&redis.limiter(json)?, out).await }),
        Command::Rules(rules) => rules::run(rules, out),
        Command::Serve(serve) => {
            if !serve.configuration.check {
                output::start_log(json)?;
            }
            let ineffective = relations::warnings(serve, &|name| merged.origin(name));
            merged.warnings.iter().chain(&ineffective).for_each(|warning| output::warn(json, warning));
            let matches = matches.subcommand().map_or(matches, |(_, matches)| matches);
            if serve.configuration.check {
                effective::print(matches, merged, redis, out)?;
            }
            serve::run(serve, redis, effective::shown(matches, redis), out)
        }
        Command::Completions { shell } => {
            let (mut text, completer) = (Vec::new(), shell.to_string());
            let shells = Shells::builtins();
            let completer = shells.completer(&completer).ok_or_else(|| Failure::usage("unknown shell"))?;
            completer.write_registration("COMPLETE", "tidegate", "tidegate", "tidegate", &mut text)?;
            out.verbatim(&text)?;
            Ok(true)
        }
        Command::Man { folder } => {
            let cannot = |error| format!("cannot write man pages into {}: {error}", folder.display());
            clap_mangen::generate_to(Cli::command(), folder)
                .map_err(|error| Failure::usage(cannot(error)))?;
            Ok(true)
        }
    }
}
