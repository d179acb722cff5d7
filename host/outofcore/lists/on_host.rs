//! Lists on the host.

use std::ops::Range;

use rayon::prelude::*;
use tagore_device::key::{self, Key};

use super::{Lists, Members};
use crate::parallel::for_each_row;
use crate::progress::StageProgress;
use crate::vectors::space::Space;
use crate::{Index, Result};

/// The lists of members on the host.
pub(in crate::outofcore) struct HostLists {
    degree: usize,
    members: Members,
    space: Space<'static>,
    /// Ascending keys of order distances and members, list after list in the order of the members.
    keys: Vec<Key>,
}

impl HostLists {
    /// The lists of `index`, whose vectors are in `space`.
    pub(in crate::outofcore) fn new(
        space: Space<'static>,
        index: &Index,
        members: Members,
        stage: &StageProgress<'_>,
    ) -> Result<Self> {
        let degree = index.max_degree();
        let mut keys = vec![key::NONE; index.len() * degree];
        for_each_row(&mut keys, degree, stage, Vec::new, |distances, place, row| {
            let member = members.order[place as usize];
            let neighbors = index.neighbors(member as usize);
            space.order_distances(member, neighbors, distances);
            let found = neighbors.iter().zip(distances.iter());
            row.iter_mut().zip(found).for_each(|(key, (&id, &distance))| *key = key::pack(distance, id));
            row.sort_unstable();
        })?;
        Ok(Self { degree, members, space, keys })
    }

    fn lists(&self, places: &Range<usize>) -> &[Key] {
        &self.keys[places.start * self.degree..places.end * self.degree]
    }
}

impl Lists for HostLists {
    fn get(&mut self, places: Range<usize>) -> Result<Vec<Key>> {
        Ok(self.lists(&places).par_iter().map(|&key| self.members.of_base(key)).collect())
    }

    fn merge(&mut self, waiting: &[(Range<usize>, &[Key])]) -> Result<Vec<u32>> {
        let Self { degree, members, space, .. } = &*self;
        let nodes: usize = waiting.iter().map(|(places, _)| places.len()).sum();
        let mut records = vec![u32::MAX; nodes * (1 + degree)];
        let mut rest = &mut records[..];
        for (places, first) in waiting {
            let (records, after) = rest.split_at_mut(places.len() * (1 + degree));
            rest = after;
            let lists = first.par_chunks_exact(*degree).zip(self.lists(places).par_chunks_exact(*degree));
            let members_there = &members.order[places.clone()];
            let rows = records.par_chunks_exact_mut(1 + degree).zip(members_there).zip(lists);
            rows.for_each_init(Room::default, |room, ((record, &member), lists)| {
                record[0] = members.ids[member as usize];
                room.merge(member, lists, (members, space), &mut record[1..]);
            });
        }
        Ok(records)
    }
}

impl Members {
    /// The key of the base for one of a member.
    pub(super) fn of_base(&self, key: Key) -> Key {
        if key == key::NONE { key } else { key >> 32 << 32 | u64::from(self.ids[key as u32 as usize]) }
    }

    /// Which member the node of this id is, if it is one.
    fn member(&self, id: u32) -> Option<u32> {
        self.ids.binary_search(&id).ok().map(|place| place as u32)
    }
}

/// Accepted neighbours that are compared at a time.
const OCCLUDERS: usize = 8;

/// What merging the lists of a node works with.
#[derive(Default)]
struct Room {
    /// Members whose neighbours have been accepted, and the distances to them.
    accepted: Vec<u32>,
    distances: Vec<f32>,
    /// Neighbours that others stand before.
    occluded: Vec<u32>,
}

impl Room {
    /// Writes the ids of neighbours of the member `node` from two lists, keys of ids and keys of
    /// members, to `row`: as many as it has room for, `u32::MAX` behind them.
    fn merge(
        &mut self,
        node: u32,
        (a, b): (&[Key], &[Key]),
        (members, space): (&Members, &Space<'_>),
        row: &mut [u32],
    ) {
        self.accepted.clear();
        self.occluded.clear();
        let (mut a, mut b) = (a.iter().copied().peekable(), b.iter().copied().peekable());
        let mut count = 0;
        while count < row.len() {
            let first = a.peek().copied().unwrap_or(key::NONE);
            let second = b.peek().map_or(key::NONE, |&key| members.of_base(key));
            let nearest = first.min(second);
            if nearest == key::NONE {
                break;
            }
            // The distance of a pair is the same in both clusters, so that what is twice there is one key twice.
            a.next_if(|_| first == nearest);
            let member = match b.next_if(|_| second == nearest) {
                Some(key) => Some(key as u32),
                None => members.member(nearest as u32),
            };
            if let Some(member) = member {
                let length = space.rule_distance(node, member, key::distance(nearest));
                if self.is_occluded(member, length, space) {
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

    /// Whether `member`, so far from the node, is nearer to one that has been accepted.
    fn is_occluded(&mut self, member: u32, length: f32, space: &Space<'_>) -> bool {
        // Mostly one of the nearest is in the way.
        self.accepted.chunks(OCCLUDERS).any(|nearer| {
            space.rule_distances(member, nearer, &mut self.distances);
            self.distances.iter().any(|&distance| distance < length)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Progress;
    use crate::{Metric, Vectors};

    /// Node 0 of a line with nodes at these places, all but the last `gone` of them members of the cluster.
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
        let mut row = [u32::MAX; 3];
        Room::default().merge(0, (&keys(a), &keys(b)), (&members, &space), &mut row);
        row
    }

    #[test]
    fn neighbours_behind_others_give_way() {
        const NONE: u32 = u32::MAX;
        let line = [0.0, 1.0, -1.5, 2.0, 3.0, -4.0];
        assert_eq!(merged(&line, 0, &[1, 2], &[1]), [1, 2, NONE], "what is in both is there once");
        assert_eq!(merged(&line, 0, &[2], &[1]), [1, 2, NONE]);
        assert_eq!(merged(&line, 0, &[3, 4], &[1]), [1, 3, 4], "what is behind fills what is left");
        assert_eq!(merged(&line, 0, &[3, 4, 5], &[1]), [1, 5, 3], "3 and 4 are nearer to 1 than to 0");
        assert_eq!(merged(&line, 2, &[3, 4], &[1]), [1, 4, 3], "of 4 there is no vector");
        assert_eq!(merged(&line, 0, &[], &[4, 5]), [4, 5, NONE]);
        assert_eq!(merged(&line, 4, &[3, 4, 5], &[1]), [1, 3, 4], "no more than there is room for");
        assert_eq!(merged(&line, 0, &[], &[]), [NONE; 3]);
    }
}
