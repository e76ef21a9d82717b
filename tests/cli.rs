//! The program `tidegate`, driven as a person or a script does, over a real Redis.

mod answers;
mod cluster;
mod docs;
mod failing;
mod hostile;
mod many;
mod orders;
mod program;
mod rules;
mod terminal;
mod top;
