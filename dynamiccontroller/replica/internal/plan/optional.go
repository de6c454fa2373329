package plan

import "fmt"

// encodedUnled contains the shards without a leader, by reason.
type encodedUnled struct {
	Held     []int `json:"held,omitempty"`
	Capacity []int `json:"capacity,omitempty"`
}

// byReason returns the shards with each reason.
func (u *encodedUnled) byReason() map[Unled]*[]int {
	return map[Unled]*[]int{UnledHeld: &u.Held, UnledCapacity: &u.Capacity}
}

// swapsOf decodes Assignment.Swap into p.
func (e *encoded) swapsOf(p Plan) error {
	for n, i := range e.Swaps {
		if i < 0 || i >= len(p) || n > 0 && i <= e.Swaps[n-1] {
			return fmt.Errorf("plan: swaps[%d] is %d, want sorted indexes of the %d shards", n, i, len(p))
		}
		p[i].Swap = true
	}
	return nil
}

// setUnled encodes Assignment.Unled.
func (e *encoded) setUnled(p Plan) error {
	for i, a := range p {
		if a.Unled == "" {
			continue
		}
		if e.Unled == nil {
			e.Unled = &encodedUnled{}
		}
		shards, known := e.Unled.byReason()[a.Unled]
		if !known {
			return fmt.Errorf("plan: shard %d is unled because of %q, which is unknown", i, a.Unled)
		}
		*shards = append(*shards, i)
	}
	return nil
}

// unledOf decodes Assignment.Unled into p.
func (e *encoded) unledOf(p Plan) error {
	if e.Unled == nil {
		return nil
	}
	for _, reason := range []Unled{UnledHeld, UnledCapacity} {
		for n, i := range *e.Unled.byReason()[reason] {
			if i < 0 || i >= len(p) || p[i].Unled != "" {
				return fmt.Errorf("plan: unled.%s[%d] is %d, want an index of the %d shards that occurs once", reason, n, i, len(p))
			}
			p[i].Unled = reason
		}
	}
	return nil
}

// setLoads encodes Assignment.Load. Shards with unknown loads at the end are left out.
func (e *encoded) setLoads(p Plan) error {
	for i, a := range p {
		if a.Load == (Load{}) {
			continue
		}
		for len(e.Loads) < i {
			e.Loads = append(e.Loads, []int{})
		}
		row := []int{a.Load.Work, a.Load.Objects}
		if err := checkLoad(i, row); err != nil {
			return err
		}
		e.Loads = append(e.Loads, row)
	}
	return nil
}

// loadsOf decodes Assignment.Load into p.
func (e *encoded) loadsOf(p Plan) error {
	if len(e.Loads) > len(p) {
		return fmt.Errorf("plan: loads has %d items, want at most the %d of shards", len(e.Loads), len(p))
	}
	for i, row := range e.Loads {
		if err := checkLoad(i, row); err != nil {
			return err
		}
		if len(row) > 0 {
			p[i].Load = Load{Work: row[0], Objects: row[1]}
		}
	}
	return nil
}

func checkLoad(i int, row []int) error {
	if len(row) != 0 && len(row) != 2 {
		return fmt.Errorf("plan: loads[%d] has %d numbers, want none, or work and objects", i, len(row))
	}
	for column, n := range row {
		if n < 0 || n > MaxLoad {
			return fmt.Errorf("plan: loads[%d][%d] is %d, want 0 to %d", i, column, n, MaxLoad)
		}
	}
	return nil
}
