//! On real sockets, between network namespaces of the test's own. Needs root.

mod figures;
mod forging;
mod hosts;
mod link;
mod serving;
mod sharing;
