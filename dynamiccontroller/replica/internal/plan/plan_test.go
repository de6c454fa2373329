package plan_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/plan"
)

type members = []plan.Member

// testCase is an input of Next and its result, in the notation of parse.
type testCase struct {
	members  members
	holders  []string
	settled  bool
	vacant   []int
	loads    string // see loadsOf
	held     []int
	previous []string
	want     []string
}

func runCases(t *testing.T, cases map[string]testCase) {
	t.Helper()
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := plan.Next(plan.Input{
				Shards:   len(tc.want),
				Members:  tc.members,
				Holders:  tc.holders,
				Settled:  tc.settled,
				Vacant:   tc.vacant,
				Loads:    loadsOf(tc.loads),
				Held:     tc.held,
				Previous: parse(tc.previous...),
			})
			if want := parse(tc.want...); format(got) != format(want) {
				t.Errorf("got %s, want %s", format(got), format(want))
			}
		})
	}
}

func TestNext_MembersThatComeAndGo(t *testing.T) {
	fresh := func(m plan.Member) plan.Member { m.New = true; return m }
	flapping := func(m plan.Member) plan.Member { m.Flapping = true; return m }
	a, b, c := member("a", 0, 1, 2, 3), member("b", 0, 1, 2, 3), member("c", 0, 1, 2, 3)
	held := []string{"a", "a", "a", "a"}
	runCases(t, map[string]testCase{
		"a new member receives no leadership": {
			members: members{a, fresh(b)}, holders: held, settled: true,
			previous: []string{"a b", "a b", "a b", "a b"}, want: []string{"a b", "a b", "a b", "a b"},
		},
		"nor does it pass one on": {
			members: members{a, fresh(b), fresh(c)}, holders: held, settled: true,
			previous: []string{"a b", "a b", "a b", "a c"}, want: []string{"a b", "a b", "a b", "a c"},
		},
		"a new member receives no copies": {
			members: members{a, b, fresh(member("c"))}, holders: []string{"a", "a", "b", "b"}, settled: true,
			previous: []string{"a b", "a b", "b a", "b a"}, want: []string{"a b", "a b", "b a", "b a"},
		},
		"nor for the sake of different nodes": {
			members: members{on("1", a), on("1", b), on("2", fresh(c))}, holders: []string{"a"}, settled: true,
			previous: []string{"a b"}, want: []string{"a b"},
		},
		"a new member leads what nobody else can lead": {
			members:  members{fresh(a)},
			previous: []string{"x y"}, want: []string{"a -"},
		},
		"a new member stands by where a standby is missing": {
			members: members{a, fresh(member("c"))}, holders: []string{"a"},
			previous: []string{"a x"}, want: []string{"a c"},
		},
		"a flapping member gets nothing": {
			members: members{a, flapping(b)}, holders: []string{"a"}, settled: true,
			previous: []string{"a x"}, want: []string{"a -"},
		},
		"a flapping member loses what it has": {
			members: members{a, flapping(b)}, holders: []string{"b"}, settled: true,
			previous: []string{"b a"}, want: []string{"a -"},
		},
		"all members flap": {
			members: members{flapping(a), flapping(b), leaving(c)}, holders: []string{"a"}, settled: true,
			previous: []string{"a x"}, want: []string{"a b"},
		},
		"a shard without a standby gets none at once from a member that would have to list it": {
			members: members{a, member("b", 1)}, holders: []string{"a", "b"},
			previous: []string{"a x", "b a"}, want: []string{"a -", "b a"},
		},
		"it gets one after some time": {
			members: members{a, member("b", 1)}, holders: []string{"a", "b"}, vacant: []int{0},
			previous: []string{"a x", "b a"}, want: []string{"a b", "b a"},
		},
		"but not from a new member that has enough": {
			members: members{a, fresh(member("b", 1))}, holders: []string{"a", "b"}, vacant: []int{0},
			previous: []string{"a x", "b a"}, want: []string{"a -", "b a"},
		},
	})
}

func TestNext_KeptShardsAreNotMoved(t *testing.T) {
	kept := func(m plan.Member, shards ...int) plan.Member { m.Kept = shards; return m }
	a, b, c := member("a", 0, 1, 2, 3), member("b", 0, 1, 2, 3), member("c", 0, 1, 2, 3)
	runCases(t, map[string]testCase{
		"a handover is cancelled": {
			members: members{kept(a, 0), b}, holders: []string{"a"}, settled: true,
			previous: []string{"b a <a"}, want: []string{"a b"},
		},
		"the copy that was to lead remains warm": {
			members: members{kept(a, 0), b, c}, holders: []string{"a"},
			previous: []string{"c b <a"}, want: []string{"a b c>a"},
		},
		"only the holder can keep a shard": {
			members: members{a, kept(b, 0)}, holders: []string{"a"}, settled: true,
			previous: []string{"b a <a"}, want: []string{"b a <a"},
		},
		"other shards are handed over instead": {
			members: members{kept(a, 0, 1), b}, holders: []string{"a", "a", "a"}, settled: true,
			previous: []string{"a b", "a b", "a b"}, want: []string{"a b", "a b", "b a <a"},
		},
		"a leader is not replaced when the other copy has synced": {
			members: members{kept(a, 0), b, c}, holders: []string{"a"},
			previous: []string{"a b c>a"}, want: []string{"a b c>a"},
		},
		"a standby is": {
			members: members{kept(a, 0), b, c}, holders: []string{"a"},
			previous: []string{"a b c>b"}, want: []string{"a c"},
		},
		"no move of the leader begins for the sake of balance": {
			members: members{kept(on("n", member("a", 0, 1)), 0, 1), on("m", member("b", 0, 1)), on("n", member("c"))},
			holders: []string{"a", "a"}, settled: true,
			previous: []string{"a b", "a b"}, want: []string{"a b", "a b"},
		},
		"no move of the leader begins": {
			members: members{kept(member("a", 0, 1), 0, 1), member("b", 0, 1), member("c")},
			holders: []string{"a", "a"}, settled: true,
			previous: []string{"a b", "a b"}, want: []string{"a b c>b", "a b"},
		},
	})
}

func TestNext_Leader(t *testing.T) {
	a, b, c := member("a", 0), member("b", 0), member("c", 0)
	runCases(t, map[string]testCase{
		"the holder remains the leader": {
			members: members{a, b}, holders: []string{"a"}, settled: true,
			previous: []string{"a b"}, want: []string{"a b"},
		},
		"the standby leads after a crash": {
			members: members{b}, holders: []string{"a"},
			previous: []string{"a b"}, want: []string{"b -"},
		},
		"the standby leads although it has not synced": {
			members: members{member("b")}, holders: []string{"a"},
			previous: []string{"a b"}, want: []string{"b -"},
		},
		"the standby leads when the holder leaves": {
			members: members{leaving(a), b}, holders: []string{"a"},
			previous: []string{"a b"}, want: []string{"b -"},
		},
		"a standby that has acquired the Lease swaps with the leader": {
			members: members{a, b}, holders: []string{"b"},
			previous: []string{"a b"}, want: []string{"b a"},
		},
		"a holder that is no copy takes the place of the leader": {
			members: members{a, b, c}, holders: []string{"c"},
			previous: []string{"a b"}, want: []string{"c b"},
		},
		"a holder without a copy becomes the leader, and the leader becomes the missing standby": {
			members: members{member("a", 1), c}, holders: []string{"c", "a"},
			previous: []string{"a -", "a c"}, want: []string{"c a", "a c"},
		},
		"a holder without a plan is the leader": {
			members: members{a, b}, holders: []string{"b"}, settled: true,
			want: []string{"b a"},
		},
		"a holder that was warming up leads": {
			members: members{a, b, member("c")}, holders: []string{"c"},
			previous: []string{"a b c>a"}, want: []string{"c b"},
		},
		"a leader that has not synced does not take the Lease from its holder": {
			members: members{member("a"), b}, holders: []string{"b"},
			previous: []string{"a b"}, want: []string{"b a"},
		},
		"a standby that has synced leads a shard without a holder before a leader that has not": {
			members: members{member("a"), b}, holders: []string{""},
			previous: []string{"a b"}, want: []string{"b a"},
		},
		"a leader that has not synced remains if the standby has not synced either": {
			members: members{member("a"), member("b")}, holders: []string{""},
			previous: []string{"a b"}, want: []string{"a b"},
		},
		"a leader that has synced remains if nobody holds the Lease": {
			members: members{a, b}, holders: []string{""},
			previous: []string{"a b"}, want: []string{"a b"},
		},
		"a holder that is not alive is ignored": {
			members: members{a, b}, holders: []string{"x"},
			previous: []string{"a b"}, want: []string{"a b"},
		},
	})
}

func TestNext_Handover(t *testing.T) {
	a, b, c := member("a", 0), member("b", 0), member("c", 0)
	runCases(t, map[string]testCase{
		"a handover continues while the old leader holds the Lease": {
			members: members{a, b}, holders: []string{"a"}, settled: true,
			previous: []string{"b a <a"}, want: []string{"b a <a"},
		},
		"a handover continues after the old leader has released the Lease": {
			members: members{a, b}, holders: []string{""}, settled: true,
			previous: []string{"b a <a"}, want: []string{"b a <a"},
		},
		"a handover ends when the new leader holds the Lease": {
			members: members{a, b}, holders: []string{"b"}, settled: true,
			previous: []string{"b a <a"}, want: []string{"b a"},
		},
		"a handover ends when the old leader is gone": {
			members: members{b, c}, holders: []string{"a"}, settled: true,
			previous: []string{"b c <a"}, want: []string{"b c"},
		},
		"a handover is given up if the new leader is gone": {
			members: members{a, c}, holders: []string{"a"},
			previous: []string{"b c <a"}, want: []string{"a c"},
		},
		"a handover is given up if the new leader is not warm any more": {
			members: members{a, member("b")}, holders: []string{"a"},
			previous: []string{"b a <a"}, want: []string{"a b"},
		},
		"a handover is given up if nobody holds the Lease and the new leader is not warm any more": {
			members: members{a, member("b"), member("c")}, holders: []string{""},
			previous: []string{"b c <a"}, want: []string{"b c"},
		},
		"a handover is given up if another member has acquired the Lease": {
			members: members{a, b, c}, holders: []string{"c"},
			previous: []string{"b c <a"}, want: []string{"c b"},
		},
		"a handover is given up if the new leader crashes after the release": {
			members: members{a, c}, holders: []string{""},
			previous: []string{"b c <a"}, want: []string{"c a"},
		},
	})
}

func TestNext_DropsWhatIsImpossible(t *testing.T) {
	a, b, c := member("a", 0), member("b", 0), member("c", 0)
	runCases(t, map[string]testCase{
		"members that are not alive": {
			members: members{a, b}, holders: []string{"a"},
			previous: []string{"x y z>x <w"}, want: []string{"a b"},
		},
		"a standby that is the leader": {
			members: members{a, b}, holders: []string{"a"},
			previous: []string{"a a"}, want: []string{"a b"},
		},
		"a warming member that is the leader": {
			members: members{a, b}, holders: []string{"a"},
			previous: []string{"a b a>b"}, want: []string{"a b"},
		},
		"a warming member that replaces no copy": {
			members: members{a, b, c}, holders: []string{"a"},
			previous: []string{"a b c>x"}, want: []string{"a b"},
		},
		"a replaced member without a warming one": {
			members: members{a, b}, holders: []string{"a"},
			previous: []string{"a b >a"}, want: []string{"a b"},
		},
		"a handover to the old leader": {
			members: members{a, b}, holders: []string{""},
			previous: []string{"a b <a"}, want: []string{"a b"},
		},
		"shards and Leases that do not exist": {
			members: members{member("a", -1, 0, 9), b}, holders: []string{"a", "b", "b"},
			previous: []string{"a b", "b a"}, want: []string{"a b"},
		},
		"members without an ID, and with the same ID": {
			members: members{member("", 0), on("n", member("a")), a, member("b"), b}, holders: []string{""},
			previous: []string{""}, want: []string{"a b"},
		},
	})
}

func TestNext_DropsWarmingsBeyondTwoOfAMember(t *testing.T) {
	runCases(t, map[string]testCase{
		"a plan that was not made by Next": {
			members: members{member("a"), member("b"), member("c")}, holders: []string{"a", "a", "a"},
			previous: []string{"a b c>b", "a b c>b", "a b c>b"},
			want:     []string{"a b", "a b c>b", "a b c>b"},
		},
	})
}

func TestNext_ShardWithoutCopies(t *testing.T) {
	runCases(t, map[string]testCase{
		"no member: nobody leads": {
			previous: []string{"a b"}, want: []string{"- -"},
		},
		"all members leave: nobody leads": {
			members: members{leaving(member("a", 0)), leaving(member("b", 0))}, holders: []string{"a"},
			previous: []string{"a b"}, want: []string{"- -"},
		},
		"a single member leads all shards": {
			members: members{member("a")}, settled: true,
			want: []string{"a -", "a -", "a -"},
		},
		"a warm member leads": {
			members: members{member("a", 1), member("b", 0, 1)}, holders: []string{"x", "b"},
			previous: []string{"x y", "b a"}, want: []string{"b -", "b a"},
		},
		"the member leads that leads least": {
			members: members{member("a", 1, 2), member("b", 1, 2)}, holders: []string{"", "a", "a"},
			previous: []string{"x y", "a b", "a b"}, want: []string{"b -", "a b", "a b"},
		},
		"the member leads that has the fewest copies, among those that lead as little": {
			members: members{member("a", 1, 2), member("b", 2), member("c", 1)}, holders: []string{"", "c", "b"},
			previous: []string{"x y", "c a", "b a", "x y"}, want: []string{"a c", "c a", "b a", "b c"},
		},
	})
}

func TestNext_MissingStandby(t *testing.T) {
	runCases(t, map[string]testCase{
		"waits until the fleet has settled": {
			members: members{member("a", 0), member("b", 1)}, holders: []string{"a", "b"},
			previous: []string{"a -", "b -"}, want: []string{"a -", "b -"},
		},
		"is assigned when the fleet has settled": {
			members: members{member("a", 0), member("b", 1)}, holders: []string{"a", "b"}, settled: true,
			previous: []string{"a -", "b -"}, want: []string{"a b", "b a"},
		},
		"is given at once to a member that is warm": {
			members: members{member("a", 0, 1), member("b", 0, 1)}, holders: []string{"a", "b"},
			previous: []string{"a -", "b a"}, want: []string{"a b", "b a"},
		},
		"is given at once to a newcomer, until it has as many copies as the fullest": {
			members:  members{member("a", 0, 1, 2), member("b", 3, 4, 5), member("c")},
			holders:  []string{"a", "a", "a", "b", "b", "b"},
			previous: []string{"a -", "a -", "a -", "b -", "b -", "b -"},
			want:     []string{"a c", "a c", "a c", "b -", "b -", "b -"},
		},
		"is given at once to a newcomer, until it has the mean": {
			members:  members{member("a", 0, 1, 2, 3, 4, 5, 6, 7), member("b"), member("c", 0, 1, 8, 9)},
			holders:  []string{"a", "a", "a", "a", "a", "a", "a", "a", "c", "c"},
			previous: []string{"a c", "a c", "a -", "a -", "a -", "a -", "a -", "a -", "c -", "c -"},
			want:     []string{"a c", "a c", "a b", "a b", "a b", "a b", "a b", "a b", "c b", "c -"},
		},
		"is given to several newcomers in turn": {
			members:  members{member("a", 0, 1, 2, 3), member("b"), member("c"), member("d")},
			holders:  []string{"a", "a", "a", "a"},
			previous: []string{"a -", "a -", "a -", "a -"},
			want:     []string{"a b", "a c", "a d", "a b"},
		},
		"prefers a member that is warm": {
			members: members{member("a", 0), member("b"), member("c", 0)}, holders: []string{"a"}, settled: true,
			previous: []string{"a -"}, want: []string{"a c"},
		},
		"prefers another node to a member that is warm": {
			members: members{on("n", member("a", 0)), on("n", member("b", 0)), on("m", member("c"))},
			holders: []string{"a"}, settled: true,
			previous: []string{"a -"}, want: []string{"a c"},
		},
		"prefers the member with the fewest copies": {
			members: members{member("a", 0, 1, 4), member("b", 1), member("c", 2, 3), member("d", 2, 3, 4)},
			holders: []string{"a", "b", "c", "d", "a"}, settled: true,
			previous: []string{"a -", "b a", "c d", "d c", "a d"}, want: []string{"a b", "b a", "c d", "d c", "a d"},
		},
		"prefers the member that is the standby of fewer shards of the leader": {
			members: members{member("a", 0, 1), member("b", 1), member("c", 2), member("d", 2)},
			holders: []string{"a", "b", "c"}, settled: true,
			previous: []string{"a -", "b a", "c d"}, want: []string{"a c", "b a", "c d"},
		},
		"can be on any member if the nodes are unknown": {
			members: members{member("a", 0), member("b", 0), on("m", member("c"))}, holders: []string{"a"}, settled: true,
			previous: []string{"a -"}, want: []string{"a b"},
		},
		"is on the leader's node if the members of other nodes have too many copies": {
			members: members{on("n", member("a", 0, 1)), on("n", member("b", 2, 3)), on("m", member("c", 1, 2, 3))},
			holders: []string{"a", "c", "b", "c"}, settled: true,
			previous: []string{"a -", "c a", "b c", "c b"}, want: []string{"a b", "c a", "b c", "c b"},
		},
		"is on the leader's node if there is no other": {
			members: members{on("n", member("a", 0)), on("n", member("b"))}, holders: []string{"a"}, settled: true,
			previous: []string{"a -"}, want: []string{"a b"},
		},
		"is not given to a member that leaves": {
			members: members{member("a", 0), leaving(member("b", 0))}, holders: []string{"a"}, settled: true,
			previous: []string{"a b"}, want: []string{"a -"},
		},
	})
}

func TestNext_Warming(t *testing.T) {
	a, b, c := member("a", 0), member("b", 0), member("c", 0)
	runCases(t, map[string]testCase{
		"takes the place of the leader, which hands the leadership over": {
			members: members{a, b, c}, holders: []string{"a"},
			previous: []string{"a b c>a"}, want: []string{"c b <a"},
		},
		"takes the place of the standby": {
			members: members{a, b, c}, holders: []string{"a"},
			previous: []string{"a b c>b"}, want: []string{"a c"},
		},
		"continues until it has synced": {
			members: members{a, b, member("c")}, holders: []string{"a"}, settled: true,
			previous: []string{"a b c>b"}, want: []string{"a b c>b"},
		},
		"continues if leader and standby have changed places": {
			members: members{a, b, member("c")}, holders: []string{"b"},
			previous: []string{"a b c>b"}, want: []string{"b a c>b"},
		},
		"becomes the standby if the leader is gone, even if the leader was to be replaced": {
			members: members{b, c}, holders: []string{"a"},
			previous: []string{"a b c>a"}, want: []string{"b c"},
		},
		"becomes the standby before it has synced if the standby is gone": {
			members: members{a, member("c")}, holders: []string{"a"},
			previous: []string{"a b c>a"}, want: []string{"a c"},
		},
		"becomes the leader if both copies are gone": {
			members: members{member("c")}, holders: []string{"a"},
			previous: []string{"a b c>a"}, want: []string{"c -"},
		},
		"is forgotten when its member is gone": {
			members: members{a, b}, holders: []string{"a"},
			previous: []string{"a b c>a"}, want: []string{"a b"},
		},
	})
}

func TestNext_Leadership(t *testing.T) {
	runCases(t, map[string]testCase{
		"is swapped if the standby leads at least two less": {
			members: members{member("a", 0, 1), member("b", 0, 1)}, holders: []string{"a", "a"}, settled: true,
			previous: []string{"a b", "a b"}, want: []string{"b a <a", "a b"},
		},
		"is not swapped before the fleet has settled": {
			members: members{member("a", 0, 1), member("b", 0, 1)}, holders: []string{"a", "a"},
			previous: []string{"a b", "a b"}, want: []string{"a b", "a b"},
		},
		"is not swapped if the standby has not synced": {
			members: members{member("a", 0, 1), member("b", 1)}, holders: []string{"a", "a"}, settled: true,
			previous: []string{"a b", "a b"}, want: []string{"a b", "b a <a"},
		},
		"is not swapped if nobody holds the Lease": {
			members: members{member("a", 0, 1), member("b", 0, 1)}, holders: []string{"", ""}, settled: true,
			previous: []string{"a b", "a b"}, want: []string{"a b", "a b"},
		},
		"is not swapped if the standby leads one less": {
			members: members{member("a", 0, 1, 2), member("b", 0, 1, 2)}, holders: []string{"a", "a", "b"}, settled: true,
			previous: []string{"a b", "a b", "b a"}, want: []string{"a b", "a b", "b a"},
		},
		"is swapped for two shards of a member at a time": {
			members: members{member("a", 0, 1, 2, 3, 4, 5), member("b", 0, 1, 2, 3, 4, 5)},
			holders: []string{"a", "a", "a", "a", "a", "a"}, settled: true,
			previous: []string{"a b", "a b", "a b", "a b", "a b", "a b"},
			want:     []string{"b a <a", "b a <a", "a b swap", "a b", "a b", "a b"},
		},
		"is swapped later if that was planned": {
			members: members{member("a", 0, 1, 2), member("b", 0, 1, 2)}, holders: []string{"a", "a", "a"}, settled: true,
			previous: []string{"a b", "a b swap", "a b"}, want: []string{"a b", "b a <a", "a b"},
		},
		"is not swapped any more if the fleet has not settled": {
			members: members{member("a", 0), member("b", 0)}, holders: []string{"a"},
			previous: []string{"a b swap"}, want: []string{"a b"},
		},
		"is not swapped any more if the standby is not warm": {
			members: members{member("a", 0), member("b")}, holders: []string{"a"}, settled: true,
			previous: []string{"a b swap"}, want: []string{"a b"},
		},
		"is not swapped any more if the standby has become the leader": {
			members: members{member("a", 0), member("b", 0)}, holders: []string{"b"}, settled: true,
			previous: []string{"a b swap"}, want: []string{"b a"},
		},
		"is not swapped while two other shards of a member move": {
			members: members{member("a", 0, 1, 2, 3, 4, 5), member("b", 0, 1, 2, 3, 4, 5)},
			holders: []string{"a", "", "a", "a", "a", "a"}, settled: true,
			previous: []string{"b a <a", "b a <a", "a b", "a b", "a b", "a b"},
			want:     []string{"b a <a", "b a <a", "a b swap", "a b", "a b", "a b"},
		},
		"is not swapped while a copy of the shard moves": {
			members: members{member("a", 0, 1), member("b", 0), member("c"), member("d")},
			holders: []string{"a", "a"}, settled: true,
			previous: []string{"a b c>b", "a d"}, want: []string{"a b c>b", "a d b>a"},
		},
		"does not pass through a member if no member leads too much": {
			members: members{member("a", 0, 1), member("b", 0, 1, 2), member("c", 2), member("d", 3, 4)},
			holders: []string{"a", "a", "b", "d", "d"}, settled: true,
			previous: []string{"a b", "a b", "b c", "d c", "d c"}, want: []string{"a b", "a b", "b c", "d c", "d c"},
		},
		"goes to the standby that leads least": {
			members: members{member("a", 0, 1, 2), member("b", 0, 3), member("c", 1, 2, 3)},
			holders: []string{"a", "a", "a", "b"}, settled: true,
			previous: []string{"a b", "a c", "a c", "b c"}, want: []string{"a b", "c a <a", "a c", "b c"},
		},
		"passes through a member if there is no other way": {
			members: members{member("a", 0, 1), member("b", 0, 2), member("c", 2, 3), member("d", 1, 3)},
			holders: []string{"a", "a", "b", "d"}, settled: true,
			previous: []string{"a b", "a d", "b c", "d c"}, want: []string{"b a <a", "a d", "c b <b", "d c"},
		},
	})
}

func TestNext_Copies(t *testing.T) {
	all := func(id string) plan.Member { return member(id, 0, 1, 2, 3, 4, 5) }
	a, b, c := all("a"), all("b"), all("c")
	runCases(t, map[string]testCase{
		"move to a member that has none, two at a time": {
			members: members{a, b, member("c")}, holders: []string{"a", "b", "a", "b", "a", "b"}, settled: true,
			previous: []string{"a b", "b a", "a b", "b a", "a b", "b a"},
			want:     []string{"a b c>b", "b a c>a", "a b", "b a", "a b", "b a"},
		},
		"do not move before the fleet has settled": {
			members: members{a, b, member("c")}, holders: []string{"a", "b", "a", "b", "a", "b"},
			previous: []string{"a b", "b a", "a b", "b a", "a b", "b a"},
			want:     []string{"a b", "b a", "a b", "b a", "a b", "b a"},
		},
		"do not move if no member can have less than it has": {
			members: members{a, b, c}, holders: []string{"a", "b", "c", "a"}, settled: true,
			previous: []string{"a b", "b c", "c a", "a b"}, want: []string{"a b", "b c", "c a", "a b"},
		},
		"prefer a member that is warm": {
			members: members{a, b, member("c", 2)}, holders: []string{"a", "b", "a"}, settled: true,
			previous: []string{"a b", "b a", "a b"},
			want:     []string{"a b c>b", "b a", "a b c>a"},
		},
		"are moved to different nodes": {
			members: members{on("n", a), on("n", b), on("m", c), on("m", all("d"))}, holders: []string{"a", "c", "d"},
			settled: true, previous: []string{"a b", "c a", "d b"}, want: []string{"a b c>b", "c a", "d b"},
		},
		"are moved to different nodes from the fuller of two members": {
			members: members{on("n", a), on("n", b), on("m", c), on("p", all("d"))}, holders: []string{"a", "c", "d"},
			settled: true, previous: []string{"a b", "c a", "d c"}, want: []string{"a b d>a", "a c <c", "c d <d"},
		},
		"that are on the same node move first": {
			members: members{on("n", a), on("n", b), on("p", c), on("m", member("d"))}, holders: []string{"c", "a"},
			settled: true, previous: []string{"c b", "a b"}, want: []string{"c b", "a b d>b"},
		},
		"are not put on one node because another shard has a move in progress": {
			members: members{on("n", a), on("m", member("b")), on("m", member("c")), on("n", all("d")), on("p", all("e"))},
			holders: []string{"d", "a", "a", "d", "e"}, settled: true,
			previous: []string{"a d <d", "a b", "a b", "d e", "e c"},
			want:     []string{"a d <d", "a b", "a b", "d e", "e c"},
		},
		"are exchanged if no member of another node has room": {
			members: members{on("n", a), on("n", b), on("m", c), on("m", all("d"))}, holders: []string{"a", "c"},
			settled: true, previous: []string{"a b", "c d"}, want: []string{"a b d>b", "c d b>d"},
		},
		"are not exchanged while a member that has room takes part in two other moves": {
			members: members{
				on("n", member("a", 0, 3)), on("n", member("b", 4)), on("n", member("g", 3, 4)),
				on("m", member("c", 1, 2)), on("q", member("e", 1, 2)), on("m", member("d", 4)),
			},
			holders: []string{"a", "c", "e", "a", "d"}, settled: true,
			previous: []string{"a b", "c e", "e c", "a g d>g", "g b <d"},
			want:     []string{"a b", "c e", "e c", "a g d>g", "g b <d"},
		},
		"of shards with different partners move to a member": {
			members: members{member("a"), member("b", 0, 2), member("c", 1, 3), member("d")},
			holders: []string{"b", "c", "b", "c"}, settled: true,
			previous: []string{"b a", "c a", "b d", "c a"}, want: []string{"b a", "c a d>a", "b d", "c a"},
		},
		"are on one node rather than too many on one member": {
			members: members{on("n", a), on("m", b), on("m", c)}, holders: []string{"a", "b", "a"},
			settled: true, previous: []string{"a b", "b a", "a b"}, want: []string{"a b c>b", "b a c>a", "a b"},
		},
	})
}

// With 30 shards and 3 members, the mean is 20 copies. The members lead 10 shards each.
func TestNext_MovesCopiesIfAMemberIsMoreThanATwentiethAboveOrBelowTheMean(t *testing.T) {
	for name, tc := range map[string]struct {
		pairs map[string]int // leader and standby: the number of shards
		want  int            // moves
	}{
		"21, 20 and 19 copies": {map[string]int{"a b": 6, "b a": 5, "a c": 4, "c a": 6, "b c": 4, "c b": 5}, 0},
		"22, 20 and 18 copies": {map[string]int{"a b": 6, "b a": 6, "a c": 4, "c a": 6, "b c": 4, "c b": 4}, 1},
		"21, 21 and 18 copies": {map[string]int{"a b": 6, "b a": 6, "a c": 4, "c a": 5, "b c": 4, "c b": 5}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			in := plan.Input{Shards: 30, Settled: true, Members: members{member("a"), member("b"), member("c")}}
			for _, pair := range slices.Sorted(maps.Keys(tc.pairs)) {
				for range tc.pairs[pair] {
					in.Previous = append(in.Previous, parse(pair)...)
				}
			}
			in = follow(in, in.Previous)
			got := 0
			for _, a := range plan.Next(in) {
				if a.Warming != "" {
					got++
				}
			}
			if got != tc.want {
				t.Errorf("%d moves, want %d", got, tc.want)
			}
		})
	}
}
