//! The program, against other people's clients and against its own end.

mod killed;
mod oracles;
mod passes;
mod place;
mod streams;
