//! Services in two regions, and `tidegate regions`.

use serde_json::json;
use tidegate_testkit::Server;

use super::program::Program;
use super::rules::File;
use super::serve::{Service, send, soon};

const RULES: &str = "domain: d
descriptors: [{ key: user, rate_limit: { unit: year, requests_per_unit: 4, regions: gossip } }]
";

#[test]
fn services_in_two_regions_share_the_limit_of_a_rule() {
    let mut servers = [Server::process(&[]).unwrap(), Server::process(&[]).unwrap()];
    let programs = servers.each_ref().map(|server| Program::of(server.url(), "edge"));
    let rules = File::new("regions-rules", RULES);
    let file = |region: &str, peer: &str, url: &str| {
        File::new(&format!("regions-{region}"), &format!("region: {region}\npeer: {peer}={url}\n"))
    };
    let configs = [file("eu", "us", servers[1].url()), file("us", "eu", servers[0].url())];
    let start = |at: usize| {
        let args = ["--rules", rules.path(), "--deadline", "30s", "--config", configs[at].path()];
        Service::start(&programs[at], &args)
    };
    let nothing = programs[0].json(1, &["regions"]);
    assert_eq!(nothing, json!({ "peers": [] }));
    let [eu, us] = [start(0), start(1)];
    // Once the peer is heard of, the whole limit is there.
    soon("both regions are heard of", || {
        programs.iter().all(|program| program.run(["regions"]).code == Some(0))
    });
    for _ in 0..2 {
        assert_eq!(eu.ask("ann"), 200);
        assert_eq!(us.ask("ann"), 200);
    }
    soon("the limit of both is used", || [&eu, &us].iter().all(|service| service.ask("ann") == 429));
    soon("all charges are sent", || programs[0].json(0, &["regions"])["waiting"] == 0);
    let shown = programs[0].json(0, &["regions"]);
    assert_eq!((&shown["peers"][0]["name"], &shown["dropped"]), (&json!("us"), &json!(0)), "{shown}");
    let all = programs[0].json(1, &["inspect"]);
    assert!(all["notes"].to_string().contains("1 key of limits that several regions share"), "{all}");
    let metrics = || send(&eu.admin, "GET /metrics", "accept: */*", "").1;
    soon("the metrics show the peer", || metrics().contains("tidegate_replication_cut_off{peer=\"us\"} 0"));
    servers[1].kill();
    soon("the peer is cut off", || programs[0].run(["regions"]).out.contains("cut off"));
}

#[test]
fn urls_of_peers_are_shown_without_passwords_and_belong_into_no_flag() {
    let program = Program::at("redis://127.0.0.1:1");
    let rules = File::new("regions-secret", RULES);
    let peer = "us=redis://reader:quagga@127.0.0.1:2";
    let check = ["serve", "--check", "--rules", rules.path(), "--region", "eu", "--peer", peer];
    let ran = program.run(check);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(!format!("{ran:?}").contains("quagga"), "{ran:?}");
    assert!(ran.out.contains("us=redis://127.0.0.1:2") && ran.err.contains("TIDEGATE_PEER"), "{ran:?}");
    let mut command = program.command(["serve", "--check", "--rules", rules.path()]);
    command.env("TIDEGATE_REGION", "eu").env("TIDEGATE_PEER", peer);
    let output = command.output().unwrap();
    let text = format!("{output:?}");
    assert!(output.status.success() && !text.contains("quagga") && !text.contains("`ps`"), "{text}");
    for (args, expected) in [
        (&["--peer", "us"][..], "write NAME=URL"),
        (&["--peer", "us=redis://reader:quagga@h", "--region", "us"], "named twice"),
        (&["--region", "eu"], "--peer"),
        (&[], "add --region NAME and --peer NAME=URL"),
    ] {
        let ran = program.run([&["serve", "--check", "--rules", rules.path()], args].concat());
        assert!(ran.err.contains(expected) && !ran.err.contains("quagga"), "{args:?}: {ran:?}");
    }
}
