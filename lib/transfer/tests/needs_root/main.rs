//! On real sockets, between network namespaces of the test's own. Needs root.

mod figures;
mod forging;
mod hosts;
mod serving;
mod sharing;

use forkyard_testnet as link;
