//! Adaptive in-flight limits: the law by simulation, its script, and limits in memory and over Redis.

mod fleet;
mod gradient2;
mod law;
mod limits;
mod load;
mod script;
mod simulation;
