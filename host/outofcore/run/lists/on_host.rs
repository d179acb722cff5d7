//! Neighbour lists on the host.

use std::ops::Range;

use tagore_device::key::{self, Key, NO_ID};

use super::{ClusterLists, Members, WaitingLists};
use crate::Result;
use crate::loops::{for_each_with, map, rows, rows_mut};
use crate::parallel::for_each_row;
use crate::progress::StageProgress;
use crate::prune::GraphRows;
use crate::vectors::space::Space;

/// The neighbour lists of a cluster's members on the host.
pub(crate) struct HostLists {
    degree: usize,
    members: Members,
    space: Space<'static>,
    /// Lists in the order of the members: ascending keys of order distances and members.
    keys: Vec<Key>,
}

impl HostLists {
    /// Takes the lists of `rows`, with their vectors in `space`.
    pub(crate) fn new(
        space: Space<'static>,
        rows: &GraphRows,
        members: Members,
        stage: &StageProgress<'_>,
    ) -> Result<Self> {
        let degree = rows.stride();
        let mut keys = vec![key::NONE; rows.len() * degree];
        for_each_row(&mut keys, degree, stage, Vec::new, |distances, place, row| {
            let member = members.order[place as usize];
            let neighbors = rows.row(member);
            space.order_distances(member, neighbors, distances);
            let found = neighbors.iter().zip(distances.iter());
            row.iter_mut().zip(found).for_each(|(key, (&id, &distance))| *key = key::pack(distance, id));
            row.sort_unstable();
        })?;
        Ok(Self { degree, members, space, keys })
    }

    /// Lists with keys of members, in the order of the members, of `degree` keys each.
    pub(crate) fn of_keys(space: Space<'static>, degree: usize, members: Members, keys: Vec<Key>) -> Self {
        Self { degree, members, space, keys }
    }

    fn lists(&self, places: &Range<usize>) -> &[Key] {
        &self.keys[places.start * self.degree..places.end * self.degree]
    }
}

impl ClusterLists for HostLists {
    fn get(&mut self, places: Range<usize>) -> Result<Vec<Key>> {
        Ok(map(self.lists(&places), |&key| self.members.of_base(key)))
    }

    fn merge(&mut self, waiting: &[WaitingLists<'_>]) -> Result<Vec<u32>> {
        let Self { degree, members, space, .. } = &*self;
        let nodes: usize = waiting.iter().map(|waiting| waiting.places.len()).sum();
        let mut records = vec![NO_ID; nodes * (1 + degree)];
        let mut rest = &mut records[..];
        for WaitingLists { places, lists: first } in waiting {
            let (records, after) = rest.split_at_mut(places.len() * (1 + degree));
            rest = after;
            let lists = (rows(first, *degree), rows(self.lists(places), *degree));
            let members_there = &members.order[places.clone()];
            let records = ((rows_mut(records, 1 + degree), members_there), lists);
            let merge = || ListMerge::new(members, space);
            for_each_with(records, merge, |merge, ((record, &member), (waiting, own))| {
                record[0] = members.ids[member as usize];
                merge.merge(member, waiting, own, &mut record[1..]);
            });
        }
        Ok(records)
    }
}

impl Members {
    /// Converts a key of a member to a key of its id.
    pub(super) fn of_base(&self, key: Key) -> Key {
        if key == key::NONE { key } else { key >> 32 << 32 | u64::from(self.ids[key as u32 as usize]) }
    }

    /// Turns a key of an id into a key of the member; false if the id is of no member.
    pub(crate) fn to_member(&self, key: &mut Key) -> bool {
        if *key == key::NONE {
            return true;
        }
        let member = self.member(*key as u32);
        *key = *key >> 32 << 32 | u64::from(member.unwrap_or(0));
        member.is_some()
    }

    /// The member with this id, if any.
    fn member(&self, id: u32) -> Option<u32> {
        self.ids.binary_search(&id).ok().map(|place| place as u32)
    }
}

/// Accepted neighbours compared at a time.
const OCCLUDERS: usize = 8;

/// Merges the two lists of a node, with scratch memory.
struct ListMerge<'a> {
    members: &'a Members,
    space: &'a Space<'a>,
    /// Accepted neighbours that are members.
    accepted: Vec<u32>,
    /// Distances to accepted neighbours.
    distances: Vec<f32>,
    /// Neighbours set aside, as ids.
    occluded: Vec<u32>,
}

impl<'a> ListMerge<'a> {
    fn new(members: &'a Members, space: &'a Space<'a>) -> Self {
        Self { members, space, accepted: Vec::new(), distances: Vec::new(), occluded: Vec::new() }
    }

    /// Merges the `waiting` list of the member `node`, keys of ids, with its `own` list, keys of
    /// members. Writes ids to `row` until it is full. The rest of `row` must be `u32::MAX`.
    fn merge(&mut self, node: u32, waiting: &[Key], own: &[Key], row: &mut [u32]) {
        let (members, space) = (self.members, self.space);
        self.accepted.clear();
        self.occluded.clear();
        let mut waiting = waiting.iter().copied().peekable();
        let mut own = own.iter().copied().peekable();
        let mut count = 0;
        while count < row.len() {
            let first = waiting.peek().copied().unwrap_or(key::NONE);
            let second = own.peek().map_or(key::NONE, |&key| members.of_base(key));
            let nearest = first.min(second);
            if nearest == key::NONE {
                break;
            }
            // A neighbour in both lists has the same key twice: distances are equal in both
            // clusters.
            waiting.next_if(|_| first == nearest);
            let member = match own.next_if(|_| second == nearest) {
                Some(key) => Some(key as u32),
                None => members.member(nearest as u32),
            };
            if let Some(member) = member {
                let length = space.rule_distance(node, member, key::distance(nearest));
                if self.is_occluded(member, length) {
                    self.occluded.push(nearest as u32);
                    continue;
                }
                self.accepted.push(member);
            }
            row[count] = nearest as u32;
            count += 1;
        }
        row[count..].iter_mut().zip(&self.occluded).for_each(|(id, &occluded)| *id = occluded);
    }

    /// Whether `member`, at the rule distance `length` from the node, is nearer to an accepted
    /// neighbour.
    fn is_occluded(&mut self, member: u32, length: f32) -> bool {
        // One of the nearest usually occludes it, so stop early.
        self.accepted.chunks(OCCLUDERS).any(|nearer| {
            self.space.rule_distances(member, nearer, &mut self.distances);
            self.distances.iter().any(|&distance| distance < length)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Progress;
    use crate::{Metric, Vectors};

    /// Merges two lists of node 0 on a line of nodes at `places`. The last `gone` nodes are no
    /// members.
    fn merged(places: &[f32], gone: usize, a: &[u32], b: &[u32]) -> [u32; 3] {
        let count = places.len() - gone;
        let vectors = Vectors::from_f32(places[..count].to_vec(), 1).unwrap();
        let members = Members { ids: (0..count as u32).collect(), order: (0..count as u32).collect() };
        let keys = |ids: &[u32]| {
            let mut keys: Vec<Key> =
                ids.iter().map(|&id| key::pack((places[id as usize] - places[0]).powi(2), id)).collect();
            keys.sort_unstable();
            keys.resize(3, key::NONE);
            keys
        };
        let space = Space::owned(vectors, Metric::L2, &Progress::silent()).unwrap();
        let mut row = [NO_ID; 3];
        ListMerge::new(&members, &space).merge(0, &keys(a), &keys(b), &mut row);
        row
    }

    #[test]
    fn occluded_neighbours_fill_the_remaining_room() {
        let line = [0.0, 1.0, -1.5, 2.0, 3.0, -4.0];
        assert_eq!(merged(&line, 0, &[1, 2], &[1]), [1, 2, NO_ID], "a neighbour in both lists appears once");
        assert_eq!(merged(&line, 0, &[2], &[1]), [1, 2, NO_ID]);
        assert_eq!(merged(&line, 0, &[3, 4], &[1]), [1, 3, 4], "occluded neighbours fill the row");
        assert_eq!(merged(&line, 0, &[3, 4, 5], &[1]), [1, 5, 3], "3 and 4 are nearer to 1 than to 0");
        assert_eq!(merged(&line, 2, &[3, 4], &[1]), [1, 4, 3], "4 is no member, so it cannot be occluded");
        assert_eq!(merged(&line, 0, &[], &[4, 5]), [4, 5, NO_ID]);
        assert_eq!(merged(&line, 4, &[3, 4, 5], &[1]), [1, 3, 4], "a full row ends the merge");
        assert_eq!(merged(&line, 0, &[], &[]), [NO_ID; 3]);
    }
}
