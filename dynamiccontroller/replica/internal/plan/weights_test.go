package plan_test

import (
	"testing"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/plan"
)

func TestNext_KeepsLoads(t *testing.T) {
	a, b := member("a", 0), member("b", 0)
	runCases(t, map[string]testCase{
		"a load becomes known": {
			members: members{a, b}, holders: []string{"a"}, loads: "100/10",
			previous: []string{"a b"}, want: []string{"a b 100/10"},
		},
		"a load that is not reported is kept": {
			members: members{a, b}, holders: []string{"a"},
			previous: []string{"a b 100/10"}, want: []string{"a b 100/10"},
		},
		"an unknown load does not replace a known one": {
			members: members{a, b}, holders: []string{"a"}, loads: "0/0",
			previous: []string{"a b 100/10"}, want: []string{"a b 100/10"},
		},
		"a load that grows by half is kept": {
			members: members{a, b}, holders: []string{"a"}, loads: "155/20",
			previous: []string{"a b 100/10"}, want: []string{"a b 100/10"},
		},
		"a load whose work grows by more is replaced": {
			members: members{a, b}, holders: []string{"a"}, loads: "156/10",
			previous: []string{"a b 100/10"}, want: []string{"a b 156/10"},
		},
		"a load whose objects grow by more is replaced": {
			members: members{a, b}, holders: []string{"a"}, loads: "100/21",
			previous: []string{"a b 100/10"}, want: []string{"a b 100/21"},
		},
		"a load that falls by a third is kept": {
			members: members{a, b}, holders: []string{"a"}, loads: "64/10",
			previous: []string{"a b 100/10"}, want: []string{"a b 100/10"},
		},
		"a load that falls by more is replaced": {
			members: members{a, b}, holders: []string{"a"}, loads: "63/10",
			previous: []string{"a b 100/10"}, want: []string{"a b 63/10"},
		},
		"impossible loads are limited": {
			members: members{a, b}, holders: []string{"a"}, loads: "-5/9999999999",
			previous: []string{"a b"}, want: []string{"a b 0/1073741824"},
		},
		"shards without a leader keep their loads": {
			previous: []string{"a b 100/10"}, want: []string{"- - 100/10"},
		},
	})
}

func TestNext_BalancesLoads(t *testing.T) {
	a, b, c := member("a", 0, 1, 2, 3), member("b", 0, 1, 2, 3), member("c", 0, 1, 2, 3)
	fresh := func(id string) plan.Member { return plan.Member{ID: id, Warm: []int{10, 11, 12}, New: true} }
	all := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	runCases(t, map[string]testCase{
		"a shard that is heavier than the mean does not hide that others are not balanced": {
			members: members{
				member("a", 0, 1), member("b", 0, 2), member("c", 2, 3), member("d", 1, 3), member("e", 4), member("f", 4),
			},
			holders: []string{"a", "a", "b", "d", "e"}, settled: true, loads: "1/10 1/10 1/10 1/10 9999/10",
			previous: []string{"a b", "a d", "b c", "d c", "e f"},
			want:     []string{"b a <a 1/10", "a d 1/10", "c b <b 1/10", "d c 1/10", "e f 9999/10"},
		},
		"an improvement by less than a hundredth is not worth a handover": {
			members: members{a, b}, holders: []string{"a", "a", "b"}, settled: true, loads: "1000/1 100/1 996/1",
			previous: []string{"a b", "a b", "b a"}, want: []string{"a b 1000/1", "a b 100/1", "b a 996/1"},
		},
		"a fifth too much is not worth a handover while copies move": {
			members: members{member("a", all...), member("b", all...), fresh("c"), fresh("d"), member("e")},
			holders: []string{"a", "a", "a", "a", "a", "a", "b", "b", "b", "b", "c", "d", "e"}, settled: true,
			loads: "10/1 10/1 10/1 10/1 10/1 10/1 10/1 10/1 10/1 10/1 90/100 90/100 90/100",
			previous: []string{
				"a b", "a b", "a b", "a b", "a b", "a b", "b a", "b a", "b a", "b a", "c d e>d", "d c", "e c",
			},
			want: []string{
				"a b 10/1", "a b 10/1", "a b 10/1", "a b 10/1", "a b 10/1", "a b 10/1",
				"b a 10/1", "b a 10/1", "b a 10/1", "b a 10/1", "c d e>d 90/100", "d c a>c 90/100", "e c 90/100",
			},
		},
		"the leader of a heavy shard hands the others over": {
			members: members{a, b}, holders: []string{"a", "a", "b"}, settled: true, loads: "1000/1 20/1 30/1",
			previous: []string{"a b", "a b", "b a"}, want: []string{"a b 1000/1", "b a <a 20/1", "b a 30/1"},
		},
		"it hands them over rather than the heavy one": {
			members: members{a, b}, holders: []string{"a", "a", "b"}, settled: true, loads: "1000/1 40/1 20/1",
			previous: []string{"a b", "a b", "b a"}, want: []string{"a b 1000/1", "b a <a 40/1", "b a 20/1"},
		},
		"members lead different numbers of shards if these are as heavy": {
			members: members{a, b}, holders: []string{"a", "b", "b", "b"}, settled: true, loads: "320/1 100/1 100/1 100/1",
			previous: []string{"a b", "b a", "b a", "b a"},
			want:     []string{"a b 320/1", "b a 100/1", "b a 100/1", "b a 100/1"},
		},
		"an unknown load counts as the mean of the known ones": {
			members: members{a, b}, holders: []string{"a", "a", "a", "b"}, settled: true, loads: "0/0 0/0 0/0 300/1",
			previous: []string{"a b", "a b", "a b", "b a"}, want: []string{"b a <a", "a b", "a b", "b a 300/1"},
		},
		"idle shards are distributed by their number": {
			members: members{a, b}, holders: []string{"a", "a", "a", "a"}, settled: true, loads: "0/1 0/1 0/1 0/1",
			previous: []string{"a b", "a b", "a b", "a b"},
			want:     []string{"b a <a 0/1", "b a <a 0/1", "a b 0/1", "a b 0/1"},
		},
		"a standby goes to the member with the fewest objects": {
			members: members{member("a", 0, 1), member("b", 2), c}, holders: []string{"a", "a", "b", "c"}, vacant: []int{3},
			loads:    "1/10 1/10 1/1000 1/10",
			previous: []string{"a c", "a c", "b c", "c -"},
			want:     []string{"a c 1/10", "a c 1/10", "b c 1/1000", "c a 1/10"},
		},
		"two members exchange copies if no member can take one": {
			members: members{member("a"), member("b"), member("c", 0, 3), member("d", 1, 2)},
			holders: []string{"c", "d", "d", "c"}, settled: true, loads: "1/90 1/60 1/70 1/40",
			previous: []string{"c a", "d a", "d b", "c b"},
			want:     []string{"c a b>a 1/90", "d a 1/60", "d b a>b 1/70", "c b 1/40"},
		},
	})
}

// The standbys of a and b are b and a, which lead as much. The others lead little.
func TestNext_MovesLeadersIfHandoversDoNotHelp(t *testing.T) {
	in := plan.Input{Shards: 8, Settled: true, Members: members{member("a"), member("b"), member("c"), member("d")}}
	in.Previous = parse("a b 100/10", "a b 100/10", "b a 100/10", "b a 100/10",
		"c d 10/10", "c d 10/10", "d c 10/10", "d c 10/10")
	p, _ := settle(t, follow(in, in.Previous))
	led := map[string]int{}
	for _, a := range p {
		led[a.Leader] += a.Load.Work
	}
	if got := greatest(led); got != 110 {
		t.Errorf("%s: a member leads %d, want 110", format(p), got)
	}
}
