//! Family networks on real bridges and taps, each test in a network namespace
//! of its own. Takes root.

mod asked;
mod beyond;
mod elsewhere;
mod fetchers;
mod guest;
mod isolation;
mod lifecycle;
mod many;
mod own;
mod passing;
mod sixteen;
mod stations;
mod stretch;
mod wall;
