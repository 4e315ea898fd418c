//! Costs of the protocol, in numbers for the documents: not a test.

use super::{job, served};
use crate::plot::{Job, Plot};
use crate::world::World;
use forkyard_transfer::{Complete, Push, flow};
use std::time::Duration;

/// `cargo test --release -p forkyard-transfer --test simulation -- --ignored --nocapture figures`
#[test]
#[ignore = "prints figures"]
fn figures() {
    println!("clients  way        asked  sent  again  pushed  lockstep  KiB sent  mean wait  took");
    for clients in [1, 4, 8, 16, 32] {
        for (name, multicast, push) in [
            ("unicast", false, Push::Nothing),
            ("multicast", true, Push::Nothing),
            ("push", true, Push::Everything),
        ] {
            let mut plot = Plot::new(9, 2000);
            plot.multicast = multicast;
            plot.push = push;
            plot.jobs = vec![
                Job {
                    thinks: Duration::from_micros(200),
                    ..job((0..2000).step_by(2))
                };
                clients
            ];
            let outcome = World::new(plot).run();
            served(&outcome, 9);
            let mean = outcome.waits.iter().sum::<Duration>()
                / u32::try_from(outcome.waits.len().max(1)).expect("few");
            let sent = outcome.sent;
            println!(
                "{clients:7}  {name:9}  {:5}  {:4}  {:5}  {:6}  {:8}  {:8}  {:8.0?}  {:.0?}",
                sent.asked,
                sent.pages,
                sent.again,
                sent.pushed,
                sent.lockstep,
                sent.bytes >> 10,
                mean,
                outcome.took
            );
        }
    }
    println!("law       loss  clients  took (all of 8000 pages, 1 Gb/s, 2 ms)");
    for (name, law) in [
        ("paper", flow::FlowLaw::Paper(flow::RateBounds::default())),
        (
            "delivery",
            flow::FlowLaw::Delivery(flow::RateBounds::default()),
        ),
    ] {
        for loss in [0.0, 1.0, 5.0] {
            for clients in [1, 4, 16] {
                let mut plot = Plot::new(11, 8000);
                plot.law = law;
                plot.network.loss = loss;
                plot.network.delay = Duration::from_millis(1);
                plot.jobs = vec![
                    Job {
                        complete: Complete::Yes,
                        ..job([])
                    };
                    clients
                ];
                let outcome = World::new(plot).run();
                served(&outcome, 11);
                println!(
                    "{name:8}  {loss:4}  {clients:7}  {:.0?}  {} KiB",
                    outcome.took,
                    outcome.sent.bytes >> 10
                );
            }
        }
    }
}
