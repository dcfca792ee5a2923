//! What a fault does to the world.

use tenure_core::locked;

use super::Stage;
use crate::{
    clockwork::Micros,
    history::{Machine, What, lock_id},
    plan::{Fault, Memory},
    server::{Data, Node},
    world::World,
};

impl Stage {
    pub(super) fn strike(&mut self, fault: Fault) {
        self.world.note(What::Fault(format!("{fault:?}")));
        let world = self.world.clone();
        match fault {
            Fault::Weather(weather) => locked(&world.network).weather = weather,
            Fault::Cut { machine, node, until, is_kept } => {
                locked(&world.network).cuts.insert((machine, node), (until, is_kept));
            }
            Fault::Lead { machine, to } => world.lead(machine, to),
            Fault::Stop { machine, until } => {
                world.clockwork.stop(self.seats[machine].process, until);
            }
            Fault::StopAsking { machine, length } => {
                let trap = (self.seats[machine].process, length);
                locked(&world.network).traps.insert(machine, trap);
            }
            Fault::Kill { machine, back_after } => self.replace(machine, back_after),
            Fault::StepClient { machine, by } => {
                self.seats[machine].clock.step(by);
                world.look(self.seats[machine].process);
            }
            of_server => {
                let before = locked(&world.nodes[0]).data.cells.clone();
                meet(&world, of_server);
                let forgotten = locked(&world.nodes[0]).forgotten_since(&before);
                for (name, owner) in forgotten {
                    world.note(What::Forgotten { lock: lock_id(&name), owner });
                }
            }
        }
    }

    /// Kills the process of this machine and starts another one.
    fn replace(&mut self, machine: Machine, back_after: Micros) {
        let (world, process) = (self.world.clone(), self.seats[machine].process);
        world.bury(process);
        world.clockwork.kill(process);
        if let Some(locker) = &self.seats[machine].locker {
            world.on_death(locker.new_owner().process());
        }
        // Its machine is idle until then. A plan is played in order, so the wait is a stop of the new process.
        self.open(machine);
        world.clockwork.stop(self.seats[machine].process, world.now() + back_after);
    }
}

/// What happens to servers.
fn meet(world: &World, fault: Fault) {
    let now = world.now();
    let node = |id: usize| locked(&world.nodes[id]);
    let copy_of = |id: usize| node(id).data.clone();
    match fault {
        Fault::StepServer { node: id, by } => node(id).life.clock.step(by),
        Fault::Copy { node: id } => {
            let copy = copy_of(id);
            node(id).copy = Some(copy);
        }
        Fault::Restart { node: id, down, memory, loads_history } => {
            let mut node = node(id);
            let data = match memory {
                Memory::Kept => None,
                Memory::Empty => Some(Data::default()),
                Memory::Copy => node.copy.take(),
            };
            node.restart(now, down, data, loads_history);
        }
        Fault::Restore { from, to, loads_history } => {
            let data = copy_of(from);
            node(to).restart(now, 0, Some(data), loads_history);
        }
        Fault::Promote { node: id, down } => node(id).promote(now, down),
        Fault::CutReplica { master } => node(master).lose_replica(now),
        Fault::TakeOver { old, new } => with_both(world, new, old, |new, old| new.take_over(now, old)),
        Fault::Demote { old, new } => with_both(world, old, new, Node::follow),
        Fault::EndBacklog { node: id } => {
            node(id).end_backlog(now);
        }
        Fault::Undo { until } => node(0).strangers.undo_until = until,
        Fault::Split { by, until } => node(0).strangers.split = (by, until),
        Fault::Lock { until } => node(0).strangers.lock_until = until,
        Fault::Flush { node: id } => node(id).flush(),
        Fault::Leave { node: id } => node(id).leave(),
        Fault::Keep { node: id } => node(id).keep(),
        Fault::Rewind { node: id, down } => node(id).rewind(now, down),
        of_client => unreachable!("BUG: {of_client:?} happens to no server"),
    }
}

fn with_both(world: &World, one: usize, other: usize, run: impl FnOnce(&mut Node, &mut Node)) {
    let (mut one, mut other) = (locked(&world.nodes[one]), locked(&world.nodes[other]));
    run(&mut one, &mut other);
}
