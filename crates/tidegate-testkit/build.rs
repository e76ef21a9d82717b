//! Builds `clock.c`, which `Server::with_shiftable_clock` preloads into a redis-server.

use std::{env, path::Path, process::Command};

fn main() {
    println!("cargo::rerun-if-changed=clock.c");
    println!("cargo::rerun-if-env-changed=CC");
    // LD_PRELOAD and the system call in clock.c exist only on Linux.
    if env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return;
    }
    let out = env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    let library = Path::new(&out).join("clock.so");
    let cc = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let built =
        Command::new(&cc).args(["-O2", "-Wall", "-shared", "-fPIC", "clock.c", "-o"]).arg(&library).status();
    match built {
        Ok(status) if status.success() => {
            println!("cargo::rustc-env=CLOCK_LIBRARY={}", library.display());
        }
        Ok(status) => println!("cargo::warning=clock.c was not built: {cc:?}: {status}"),
        Err(error) => println!("cargo::warning=clock.c was not built: {cc:?}: {error}"),
    }
}
