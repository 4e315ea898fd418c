use super::*;
use crate::{Composition, FileFormat, Of};
use std::time::Duration;

const LAMP: &str = r#"
name: lamp
services:
  db:
    image: mariadb
    mem_limit: 512m
    environment: { TZ: UTC, PORT: 3306, EMPTY: "" }
    healthcheck:
      test: ["CMD", "mariadb-admin", "ping"]
      interval: 500ms
      start_period: 1m
  web:
    x-substrate: apache
    cpus: 2
    mem_limit: 1g
    x-disk: 4g
    environment:
      - MODE=fast=yes
      - PRICE=5$$
    ports:
      - "127.0.0.1:8080:80"
      - { target: 53, published: 5353, protocol: udp }
    x-addresses: ["203.0.113.7/routed"]
    depends_on: { db: { condition: service_healthy } }
    command: apache2ctl start
    healthcheck: { test: wget -q -O /dev/null http://127.0.0.1/ }
"#;

fn parsed(text: &str) -> Composition {
    Composition::parse(FileFormat::Yaml, text, "x").expect("makes sense")
}

fn refused(text: &str) -> String {
    let refused = Composition::parse(FileFormat::Yaml, text, "x").expect_err("makes no sense");
    refused.to_string()
}

#[test]
fn a_compose_file_means_what_its_toml_would() {
    let lamp = parsed(LAMP);
    let (db, web) = (&lamp.members["db"], &lamp.members["web"]);
    assert_eq!((lamp.name.as_str(), db.vm.as_str()), ("lamp", "lamp-db"));
    let health = db.health.as_ref().expect("tested");
    assert_eq!(health.test, ["mariadb-admin", "ping"]);
    assert_eq!(
        (health.interval, health.start),
        (Duration::from_millis(500), Duration::from_secs(60))
    );
    let port = db.env.get("PORT").map(String::as_str);
    assert_eq!((port, db.env["EMPTY"].as_str()), (Some("3306"), ""));
    let Of::Substrate {
        memory,
        vcpus,
        disk,
        ..
    } = &web.of
    else {
        panic!("{:?}", web.of);
    };
    assert_eq!((*memory, *vcpus, *disk), (Some(1024), Some(2), Some(4096)));
    assert_eq!(
        (web.env["MODE"].as_str(), web.env["PRICE"].as_str()),
        ("fast=yes", "5$")
    );
    let ports: Vec<_> = web.publish.iter().map(ToString::to_string).collect();
    let leads = ["127.0.0.1:8080:80/tcp", "5353:53/udp", "203.0.113.7/routed"];
    assert_eq!(ports, leads);
    assert_eq!(web.after, ["db".to_owned()].into());
    let command = web.command.as_ref().expect("one");
    assert_eq!(command[..], ["sh", "-c", "apache2ctl start"]);
}

#[test]
fn what_is_not_in_the_subset_is_refused_by_its_name_and_line() {
    let in_service = |key: &str| refused(&format!("services:\n  a:\n    image: x\n    {key}\n"));
    for (key, why) in [
        ("imag: y", "unknown field `imag`"),
        (
            "ports: [\"203.0.113.7/routed\"]",
            "write it into x-addresses",
        ),
        ("x-addresses: [\"80:80\"]", "wanted ADDRESS/routed"),
        ("volumes: [a:/b]", "a.volumes: members have no volumes"),
        ("build: .", "a.build: build the image first"),
        ("cpus: 1.5", "a.cpus: wanted a whole number, not 1.5"),
        ("mem_limit: 1000", "no size of whole MiB"),
        ("ports: [80]", "80 names no port of the host"),
        ("ports: ['1-2:1-2']", "ranges and ports that are drawn"),
        ("environment: [A]", "A has no value"),
        ("environment: { A: }", "A has no value"),
        ("environment: { A: '${B}' }", "has a variable"),
        ("command: echo $HOME", "has a variable"),
        ("restart: sometimes", "a.restart: "),
        ("healthcheck: { test: [ping] }", "a test begins with CMD"),
        ("healthcheck: { interval: 1s }", "it has no test"),
        (
            "depends_on: { b: { condition: service_completed_successfully } }",
            "service_completed_successfully",
        ),
        ("depends_on: [b]", "b, which is not in the file"),
    ] {
        let said = in_service(key);
        assert!(said.contains(why), "{key}: {said}");
        // Of what belongs to two services, and of what is wrong with one as a whole, there is no one line.
        let whole = key.contains("depends_on: [") || key.contains("interval");
        assert!(whole || said.contains("line 4"), "{key}: {said}");
    }
    let said = refused("services:\n  a: { image: x }\nvolumes:\n  b:\n");
    assert!(said.contains("volumes: members have no volumes"), "{said}");
    assert_eq!(refused("services: {}"), "it has no members");
    assert!(refused("services:\n  a: {}\n").contains("wanted one of image and x-substrate"));
    assert!(refused("services:\n  a: { image: x }\n  a: { image: y }\n").contains("duplicate"));
}

#[test]
fn anchors_are_followed_and_what_they_can_grow_to_is_bounded() {
    let shared = "x: 1";
    assert!(refused(shared).contains("unknown field `x`"));
    let text = "services:\n  a: &a { image: x, environment: { A: b } }\n  b: *a\n";
    assert_eq!(parsed(text).members["b"].env["A"], "b");
    // Each line is ten of the one before: a thousand million in all.
    let mut bomb = String::from("services:\n  a:\n    image: x\n    volumes:\n      - &a0 [x]\n");
    for level in 0..9 {
        let ten = vec![format!("*a{level}"); 10].join(", ");
        bomb += &format!("      - &a{} [{ten}]\n", level + 1);
    }
    let said = refused(&bomb);
    assert!(said.contains("alias"), "{said}");
    let deep = format!("services: {}{}", "[".repeat(5000), "]".repeat(5000));
    refused(&deep);
    let long = format!("name: {}", "x".repeat(LONGEST));
    assert!(refused(&long).contains("bytes, of which"));
}
