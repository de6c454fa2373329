package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"
)

// Limits of an encoded plan.
const (
	// MaxEncoded is the maximum length of an encoded plan in bytes. It is the limit of Kubernetes for the annotations of
	// an object.
	MaxEncoded = 256 << 10
	// MaxMembers is the maximum number of members in an encoded plan.
	MaxMembers = 4096
	// MaxIDLength is the maximum length of a member's ID in bytes.
	MaxIDLength = 1024
)

// encoded is the JSON form of a plan. Shards contains the indexes of the leader, the standby, the warming member, the
// replaced one and the one that the leadership comes from. Absent is -1, and left out at the end. Format is omitted for
// the first format. A new format is written one version after it can be read. Versions that do not know a field ignore
// it.
type encoded struct {
	Format  int           `json:"format,omitempty"`
	Members []string      `json:"members"` // sorted
	Shards  [][]int       `json:"shards"`
	Swaps   []int         `json:"swaps,omitempty"` // shards, sorted
	Unled   *encodedUnled `json:"unled,omitempty"`
	Loads   [][]int       `json:"loads,omitempty"` // by shard: work and objects, or nothing
}

const planFormat = 1

// columns is the maximum number of indexes of a shard.
const columns = 5

// fields returns the members of an assignment in the order of the columns.
func (a *Assignment) fields() [columns]*string {
	return [columns]*string{&a.Leader, &a.Standby, &a.Warming, &a.Replaces, &a.From}
}

// Encode returns a plan as JSON. Equal plans have equal encodings. With 256 shards and 50 members, an encoding has
// about 3 kB, plus 2 to 5 kB of loads and the IDs of the members.
func (p Plan) Encode() (string, error) {
	index := map[string]int{}
	for _, a := range p {
		for _, id := range a.fields() {
			if *id != "" {
				index[*id] = none
			}
		}
	}
	e := encoded{Members: slices.Sorted(maps.Keys(index)), Shards: make([][]int, len(p))}
	if e.Members == nil {
		e.Members = []string{}
	}
	if err := e.check(); err != nil {
		return "", err
	}
	for m, id := range e.Members {
		index[id] = m
	}
	for i, a := range p {
		row := make([]int, 0, columns)
		for column, id := range a.fields() {
			if *id != "" {
				for len(row) < column {
					row = append(row, none)
				}
				row = append(row, index[*id])
			}
		}
		e.Shards[i] = row
		if a.Swap {
			e.Swaps = append(e.Swaps, i)
		}
	}
	if err := e.setUnled(p); err != nil {
		return "", err
	}
	if err := e.setLoads(p); err != nil {
		return "", err
	}
	data, err := json.Marshal(e)
	if err != nil {
		return "", fmt.Errorf("plan: %w", err)
	}
	if len(data) > MaxEncoded {
		return "", tooLong(len(data))
	}
	return string(data), nil
}

// Decode returns the plan that Encode was called with. It checks the form of a plan only. For example, the leader and
// the standby of a shard can be the same member, which Next corrects. Unknown fields are ignored.
func Decode(s string) (Plan, error) {
	if len(s) > MaxEncoded {
		return nil, tooLong(len(s))
	}
	var e encoded
	if err := json.Unmarshal([]byte(s), &e); err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	if e.Format > planFormat {
		return nil, fmt.Errorf("plan: it has format %d, which a later version writes; the newest known one is %d",
			e.Format, planFormat)
	}
	if e.Shards == nil {
		return nil, errors.New("plan: shards is missing")
	}
	if err := e.check(); err != nil {
		return nil, err
	}
	p := make(Plan, len(e.Shards))
	for i, row := range e.Shards {
		if len(row) > columns {
			return nil, fmt.Errorf("plan: shards[%d] has %d indexes, want at most %d", i, len(row), columns)
		}
		fields := p[i].fields()
		for column, m := range row {
			switch {
			case m == none:
			case m < 0 || m >= len(e.Members):
				return nil, fmt.Errorf("plan: shards[%d][%d] is %d, want an index of the %d members, or %d",
					i, column, m, len(e.Members), none)
			default:
				*fields[column] = e.Members[m]
			}
		}
	}
	if err := e.swapsOf(p); err != nil {
		return nil, err
	}
	if err := e.unledOf(p); err != nil {
		return nil, err
	}
	if err := e.loadsOf(p); err != nil {
		return nil, err
	}
	return p, nil
}

// check returns an error if there are too many shards or members, or if IDs are invalid.
func (e encoded) check() error {
	switch {
	case len(e.Shards) > MaxShards:
		return fmt.Errorf("plan: shards has %d items, want at most %d", len(e.Shards), MaxShards)
	case len(e.Members) > MaxMembers:
		return fmt.Errorf("plan: members has %d items, want at most %d", len(e.Members), MaxMembers)
	}
	for m, id := range e.Members {
		switch {
		case id == "":
			return fmt.Errorf("plan: members[%d] is empty", m)
		case len(id) > MaxIDLength:
			return fmt.Errorf("plan: members[%d] has %d bytes, want at most %d", m, len(id), MaxIDLength)
		case !utf8.ValidString(id): // JSON would change it
			return fmt.Errorf("plan: members[%d] is %q, want valid UTF-8", m, id)
		case m > 0 && e.Members[m-1] >= id:
			return fmt.Errorf("plan: members[%d] is %q after %q, want sorted members without duplicates", m, id, e.Members[m-1])
		}
	}
	return nil
}

func tooLong(length int) error {
	return fmt.Errorf("plan: %d bytes, want at most %d", length, MaxEncoded)
}
