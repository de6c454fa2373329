package plan_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/plan"
)

func TestDecode_ReturnsThePlanThatWasEncoded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := plan.Plan(rapid.SliceOfN(assignments(rapid.String()), 0, 20).Draw(t, "plan"))
		s, err := want.Encode()
		if err != nil {
			t.Fatal(err)
		}
		got, err := plan.Decode(s)
		if err != nil {
			t.Fatalf("%s: %v", s, err)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%s: got %v, want %v", s, got, want)
		}
	})
}

func TestEncode_256ShardsOf50MembersFitIn16KiB(t *testing.T) {
	id := func(i int) string { // a Pod's name and a UUID
		return fmt.Sprintf("dynamic-controller-manager-7d9f8b6c5d-%05d_3f2b8c1e-9a47-4d52-8f0b-%012d", i%50, i%50)
	}
	p := make(plan.Plan, 256)
	for i := range p { // moves in progress are few, but the limit should hold anyway
		p[i] = plan.Assignment{
			Leader: id(i), Standby: id(i + 1), Warming: id(i + 2), Replaces: id(i), From: id(i + 3),
			Load: plan.Load{Work: 1000 + i, Objects: 10_000 + i},
		}
	}
	s, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes", len(s))
	if len(s) > 16<<10 {
		t.Errorf("got %d bytes, want at most 16 KiB", len(s))
	}
}

func TestEncode_ReturnsAnErrorIfThePlanCannotBeDecoded(t *testing.T) {
	manyMembers := make(plan.Plan, 1000)
	for i := range manyMembers {
		for j, field := range []*string{&manyMembers[i].Leader, &manyMembers[i].Standby, &manyMembers[i].Warming,
			&manyMembers[i].Replaces, &manyMembers[i].From} {
			*field = fmt.Sprint(i, j)
		}
	}
	for name, tc := range map[string]struct {
		plan plan.Plan
		want string
	}{
		"too many shards":  {make(plan.Plan, plan.MaxShards+1), "plan: shards has 4097 items, want at most 4096"},
		"too many members": {manyMembers, "plan: members has 5000 items, want at most 4096"},
		"an ID that is too long": {plan.Plan{{Leader: strings.Repeat("a", plan.MaxIDLength+1)}},
			"plan: members[0] has 1025 bytes, want at most 1024"},
		"an ID that JSON cannot represent": {plan.Plan{{Leader: "\xff"}},
			`plan: members[0] is "\xff", want valid UTF-8`},
		"a load that is too great": {plan.Plan{{}, {Load: plan.Load{Work: 1, Objects: plan.MaxLoad + 1}}},
			"plan: loads[1][1] is 1073741825, want 0 to 1073741824"},
		"an unknown reason": {plan.Plan{{}, {Unled: "x"}},
			`plan: shard 1 is unled because of "x", which is unknown`},
		"an encoding that is too long": {longPlan(), "plan: 309814 bytes, want at most 262144"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := tc.plan.Encode(); err == nil || err.Error() != tc.want {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
}

// longPlan returns a plan of 300 members with long IDs.
func longPlan() plan.Plan {
	p := make(plan.Plan, 300)
	for i := range p {
		p[i].Leader = fmt.Sprintf("%03d%s", i, strings.Repeat("a", plan.MaxIDLength-3))
	}
	return p
}

func TestDecode_ErrorsNameTheField(t *testing.T) {
	for name, tc := range map[string]struct{ in, want string }{
		"nothing":              {"", "plan: unexpected end of JSON input"},
		"no JSON":              {"x", "plan: invalid character 'x' looking for beginning of value"},
		"null":                 {"null", "plan: shards is missing"},
		"no shards":            {`{"members":["a"]}`, "plan: shards is missing"},
		"shards that are null": {`{"members":["a"],"shards":null}`, "plan: shards is missing"},
		"more after the plan":  {`{"shards":[]}{}`, "plan: invalid character '{' after top-level value"},
		"an index without a member": {`{"members":["a"],"shards":[[0],[0,1]]}`,
			"plan: shards[1][1] is 1, want an index of the 1 members, or -1"},
		"a negative index": {`{"members":["a"],"shards":[[-2]]}`,
			"plan: shards[0][0] is -2, want an index of the 1 members, or -1"},
		"an index that is no integer": {`{"members":["a"],"shards":[[0.5]]}`,
			"plan: json: cannot unmarshal number 0.5 into Go struct field encoded.shards of type int"},
		"too many indexes": {`{"members":["a"],"shards":[[0,0,0,0,0,0]]}`,
			"plan: shards[0] has 6 indexes, want at most 5"},
		"an empty ID": {`{"members":[""],"shards":[]}`, "plan: members[0] is empty"},
		"an ID that occurs twice": {`{"members":["a","a"],"shards":[]}`,
			`plan: members[1] is "a" after "a", want sorted members without duplicates`},
		"an ID that is too long": {`{"members":["` + strings.Repeat("a", 1025) + `"],"shards":[]}`,
			"plan: members[0] has 1025 bytes, want at most 1024"},
		"too many shards": {`{"members":[],"shards":[[]` + strings.Repeat(",[]", 4096) + `]}`,
			"plan: shards has 4097 items, want at most 4096"},
		"too many members": {`{"members":["a"` + strings.Repeat(`,"a"`, 4096) + `],"shards":[]}`,
			"plan: members has 4097 items, want at most 4096"},
		"a negative load": {`{"members":[],"shards":[[],[]],"loads":[[],[-1,0]]}`,
			"plan: loads[1][0] is -1, want 0 to 1073741824"},
		"a load that is too great": {`{"members":[],"shards":[[]],"loads":[[0,1073741825]]}`,
			"plan: loads[0][1] is 1073741825, want 0 to 1073741824"},
		"a load without objects": {`{"members":[],"shards":[[]],"loads":[[1]]}`,
			"plan: loads[0] has 1 numbers, want none, or work and objects"},
		"too many loads": {`{"members":[],"shards":[[]],"loads":[[],[]]}`,
			"plan: loads has 2 items, want at most the 1 of shards"},
		"an unled shard that does not exist": {`{"members":[],"shards":[[]],"unled":{"capacity":[1]}}`,
			"plan: unled.capacity[0] is 1, want an index of the 1 shards that occurs once"},
		"a shard that is unled for two reasons": {`{"members":[],"shards":[[]],"unled":{"held":[0],"capacity":[0]}}`,
			"plan: unled.capacity[0] is 0, want an index of the 1 shards that occurs once"},
		"a swap of a shard that does not exist": {`{"members":[],"shards":[[]],"swaps":[-1]}`,
			"plan: swaps[0] is -1, want sorted indexes of the 1 shards"},
		"swaps that are not sorted": {`{"members":[],"shards":[[],[]],"swaps":[1,0]}`,
			"plan: swaps[1] is 0, want sorted indexes of the 2 shards"},
		"too many bytes": {strings.Repeat(" ", plan.MaxEncoded+1), "plan: 262145 bytes, want at most 262144"},
	} {
		t.Run(name, func(t *testing.T) {
			if p, err := plan.Decode(tc.in); err == nil || err.Error() != tc.want || p != nil {
				t.Errorf("got %v, %v, want %s", p, err, tc.want)
			}
		})
	}
}

// A later release can add fields.
func TestDecode_IgnoresUnknownFields(t *testing.T) {
	p, err := plan.Decode(`{"members":["a"],"shards":[[0]],"weights":[1]}`)
	if err != nil || !slices.Equal(p, plan.Plan{{Leader: "a"}}) {
		t.Errorf("got %v, %v", p, err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		``, `null`, `{}`, `[]`, `{"shards":[]}`, `{"members":["a","b"],"shards":[[0,1],[1],[],[-1,-1,0,1],null]}`,
		`{"members":["a"],"shards":[[1e99]]}`, `{"members":["\ud800"],"shards":[[0]]}`, strings.Repeat("[", 20_000),
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := plan.Decode(s)
		if err != nil {
			return
		}
		encoded, err := p.Encode()
		if err != nil && len(s) > plan.MaxEncoded/6 {
			return // JSON can escape a character with six bytes
		}
		if err != nil {
			t.Fatal(err)
		}
		if again, err := plan.Decode(encoded); err != nil || !slices.Equal(again, p) {
			t.Fatalf("got %v, %v, want %v", again, err, p)
		}
	})
}

// VERSIONING.md lists the formats. Members of two versions can be in one fleet.
func TestFormats_AreReadAndWrittenAsBefore(t *testing.T) {
	const text = `{"members":["a","b","c"],"shards":[[0,1],[1,-1,0],[2,0,-1,1],[1,0,2,-1,0],[]]}`
	want := plan.Plan{
		{Leader: "a", Standby: "b"}, {Leader: "b", Warming: "a"}, {Leader: "c", Standby: "a", Replaces: "b"},
		{Leader: "b", Standby: "a", Warming: "c", From: "a"}, {},
	}
	got, err := plan.Decode(text)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
	if s, err := want.Encode(); err != nil || s != text {
		t.Errorf("got %s, %v", s, err)
	}
	const optional = `{"members":["a","b"],"shards":[[0,1],[],[1],[]],` +
		`"swaps":[0],"unled":{"held":[1],"capacity":[3]},"loads":[[],[5,0],[7,9]]}`
	want = plan.Plan{
		{Leader: "a", Standby: "b", Swap: true}, {Unled: plan.UnledHeld, Load: plan.Load{Work: 5}},
		{Leader: "b", Load: plan.Load{Work: 7, Objects: 9}}, {Unled: plan.UnledCapacity},
	}
	got, err = plan.Decode(optional)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
	if s, err := want.Encode(); err != nil || s != optional {
		t.Errorf("got %s, %v", s, err)
	}
	if _, err := plan.Decode(`{"format":2,"shards":[]}`); err == nil || !strings.Contains(err.Error(), "format 2") {
		t.Errorf("a plan in a newer format: got %v", err)
	}
}
