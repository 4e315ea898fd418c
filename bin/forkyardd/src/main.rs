//! forkyardd
fn main() {}
