//! forkyard-recipe
