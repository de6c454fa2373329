package fleet

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/plan"
)

const shardLeaseDuration = 3 * time.Second

var commandNames = [...]string{
	"lose", "warm", "cool", "campaign", "end campaign", "drain", "cancel drain", "resume", "request",
}

// shardScript plays a script with one shard of the member "self". Each line is a fact or an end, and the commands of
// the step that follows.
type shardScript struct {
	shard *Shard
	facts Facts
	other State // of the member "other"
}

func newShardScript() *shardScript {
	return &shardScript{
		shard: NewShard(0, shardLeaseDuration),
		facts: Facts{Now: time.Now(), Self: "self", Layout: Layout{LayoutFixed, 8}},
		other: State{Layout: 8},
	}
}

func (p *shardScript) play(line string) string {
	f := &p.facts
	holder, hasHolder := "", false
	if f.Fleet != nil {
		holder, hasHolder = f.Fleet.Holders[0]
	}
	switch words := strings.Fields(line); words[0] {
	case "plan": // leader standby warming from
		for len(words) < 5 {
			words = append(words, "-")
		}
		for i, field := range []*string{
			&f.Assignment.Leader, &f.Assignment.Standby, &f.Assignment.Warming, &f.Assignment.From,
		} {
			*field = strings.ReplaceAll(words[i+1], "-", "")
		}
		f.Assignment.Unled = ""
	case "unled":
		f.Assignment = plan.Assignment{Unled: plan.Unled(words[1])}
	case "layout":
		states := map[string]LayoutState{"none": LayoutNone, "changing": LayoutChanging, "fixed": LayoutFixed}
		f.Layout.State = states[words[1]]
	case "excluded":
		f.ExclusionLost = map[string]error{"yes": nil, "no": errors.New("expired")}[words[1]]
	case "leads":
		f.Leading, holder, hasHolder = true, "self", true
	case "other": // warm, cold, gone
		p.other = State{Layout: 8, Leaving: words[1] == "gone"}
		if words[1] == "warm" {
			p.other.Warm = []int{0}
		}
	case "holder":
		holder, hasHolder = strings.ReplaceAll(words[1], "-", ""), true
	case "lost":
		f.Leading = false
	case "ended": // the campaign
		f.Leading = false
		p.shard.CampaignEnded()
	case "cold":
		p.shard.WarmingEnded()
	case "failed":
		p.shard.WarmingFailed()
	case "drained":
		p.shard.DrainEnded(true, f.Now)
	case "refused":
		p.shard.DrainEnded(false, f.Now)
	case "after":
		d, err := time.ParseDuration(words[1])
		if err != nil {
			panic(err)
		}
		f.Now = f.Now.Add(d)
	}
	f.Fleet = &Snapshot{
		Synced: true, Holders: map[int]string{},
		Members: []Member{{Identity: "other", State: p.other}, {Identity: "self", State: State{Layout: 8}}},
	}
	if hasHolder {
		f.Fleet.Holders[0] = holder
	}
	var names []string
	for _, c := range p.shard.Step(*f) {
		names = append(names, commandNames[c])
	}
	return strings.Join(names, ", ")
}

func TestShard(t *testing.T) {
	for name, script := range map[string]string{
		"a copy keeps the shard warm, and campaigns": `
			plan other self          -> warm, campaign
			plan other self          ->
			plan other third         -> end campaign
			ended                    -> cool
			cold                     ->`,
		"a member that replaces a copy does not campaign": `
			plan other third self    -> warm
			plan self third          -> campaign`,
		"a shard cools down before it is warmed again": `
			plan other third self    -> warm
			plan other third         -> cool
			plan other third self    ->
			cold                     -> warm`,
		"a runnable of the warm shard fails": `
			plan other third self    -> warm
			failed                   ->
			cold                     -> warm`,
		"a copy whose shard has cooled down does not campaign": `
			plan other third self    -> warm
			plan other third         -> cool
			plan self other          ->
			cold                     -> warm, campaign`,
		"a leader continues, whatever the plan says": `
			plan self other          -> warm, campaign
			leads                    ->
			plan other third         ->
			other warm               ->
			plan - -                 ->`,
		"a shard is moved when the other copy is warm and the work has returned": `
			plan self other          -> warm, campaign
			leads                    ->
			plan other self - self   ->
			other warm               -> drain
			other warm               ->
			drained                  -> end campaign
			other warm               ->
			ended                    -> resume, campaign`,
		"the move is cancelled while the work returns": `
			plan self other          -> warm, campaign
			leads                    ->
			plan other self - self   ->
			other warm               -> drain
			other gone               -> cancel drain
			other gone               ->
			refused                  ->
			other warm               -> drain`,
		"the move is cancelled when the work has returned": `
			plan self other          -> warm, campaign
			leads                    ->
			plan other self - self   ->
			other warm               -> drain
			other gone               -> cancel drain
			drained                  -> resume
			other gone               ->`,
		"a shard whose work does not return is kept": `
			plan self other          -> warm, campaign
			leads                    ->
			plan other self - self   ->
			other warm               -> drain
			refused                  ->
			after 11999ms            ->
			after 1ms                -> drain`,
		"a term that is lost ends the drain": `
			plan self other          -> warm, campaign
			leads                    ->
			plan other self - self   ->
			other warm               -> drain
			ended                    -> cancel drain
			other warm               ->
			drained                  -> resume, campaign`,
		"a plan without a place for the leader moves it in order": `
			plan self other          -> warm, campaign
			leads                    ->
			plan other third - self  ->
			other warm               -> drain
			drained                  -> end campaign
			ended                    -> cool, resume`,
		"replicas without shards may lead": `
			plan self other          -> warm, campaign
			leads                    ->
			excluded no              -> lose, end campaign
			ended                    -> lose
			excluded yes             -> campaign`,
		"the layout changes": `
			plan self other          -> warm, campaign
			leads                    ->
			layout changing          -> end campaign
			ended                    -> cool
			cold                     ->
			layout fixed             -> warm, campaign`,
		"the layout is gone": `
			plan self other          -> warm, campaign
			leads                    ->
			excluded no              -> lose, end campaign
			layout none              -> lose
			ended                    -> lose, cool`,
		"the layout is gone, and the Lease still excludes others": `
			plan self other          -> warm, campaign
			leads                    ->
			layout none              -> end campaign`,
		"the planned leader requests a Lease that was released": `
			plan self other          -> warm, campaign
			holder other             ->
			holder -                 -> request
			leads                    ->
			holder -                 ->`,
		"a Lease that was released is not requested before the shard is warm": `
			plan other third self    -> warm
			plan other third         -> cool
			plan self other          ->
			holder -                 ->`,
		"a standby does not": `
			plan other self          -> warm, campaign
			holder -                 ->`,
		"an orphaned shard is led without a plan": `
			other gone               ->
			plan gone gone           ->
			after 5999ms             ->
			after 1ms                -> warm, campaign
			plan self other          ->`,
		"a shard that has a copy meanwhile is not orphaned": `
			other gone               ->
			plan gone gone           ->
			after 5s                 ->
			other warm               ->
			plan gone other          ->
			other gone               ->
			after 5999ms             ->
			after 1ms                -> warm, campaign`,
		"a shard that must not be led is not adopted": `
			other gone               ->
			unled held               ->
			after 1h                 ->
			plan self other          -> warm, campaign
			leads                    ->
			unled held               -> end campaign
			ended                    -> cool
			cold                     ->
			after 767s               ->
			after 1s                 ->
			after 6s                 -> warm, campaign`,
		"a shard without capacity is not adopted, but a leader continues": `
			other gone               ->
			unled capacity           ->
			after 1h                 ->
			plan self other          -> warm, campaign
			leads                    ->
			unled capacity           ->
			lost                     -> end campaign`,
		"a member that has acquired an orphaned shard may have lost it": `
			other gone               ->
			plan gone gone           ->
			after 6s                 -> warm, campaign
			leads                    ->
			lost                     ->
			after 1s                 ->`,
	} {
		t.Run(name, func(t *testing.T) {
			p := newShardScript()
			for line := range strings.Lines(strings.TrimSpace(script)) {
				input, want, _ := strings.Cut(strings.TrimSpace(line), "->")
				if got := p.play(input); got != strings.TrimSpace(want) {
					t.Fatalf("%s: got %q", strings.TrimSpace(line), got)
				}
			}
		})
	}
}

// TestShard_Random checks that the commands fit together in random histories: a campaign needs a warm shard, what has
// begun ends once, and each drain that has succeeded is followed by a resumption before the next campaign.
func TestShard_Random(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test needs no secure numbers
	for range 300 {
		p := newShardScript()
		m := &shardModel{script: p}
		for range 200 {
			line := m.next(random)
			m.lines = append(m.lines, line+" -> "+p.play(line))
			if err := m.check(m.lines[len(m.lines)-1]); err != nil {
				t.Fatalf("%v\n%s", err, strings.Join(m.lines, "\n"))
			}
		}
	}
}

// shardModel is what a member does for a shard.
type shardModel struct {
	script                    *shardScript
	lines                     []string
	warm, cooling             bool
	campaigning, handingOver  bool
	draining, cancelled, held bool // held: drained, and not resumed
}

// next returns a random input that is possible.
func (m *shardModel) next(random *rand.Rand) string {
	inputs := []string{
		"plan self other", "plan other self", "plan other third self", "plan other third", "plan other self - self",
		"plan other third - self", "plan gone gone", "layout changing", "layout none", "layout fixed", "layout fixed",
		"excluded no", "excluded yes", "excluded yes", "other warm", "other warm", "other cold", "other gone",
		"holder -", "after 1s", "after 7s",
	}
	if m.campaigning {
		inputs = append(inputs, "leads", "leads", "leads", "lost", "ended")
	}
	if m.handingOver {
		inputs = append(inputs, "ended", "ended", "ended")
	}
	if m.cooling {
		inputs = append(inputs, "cold", "cold", "cold")
	}
	if m.warm {
		inputs = append(inputs, "failed")
	}
	if m.draining {
		inputs = append(inputs, "drained", "drained", "refused")
	}
	input := inputs[random.IntN(len(inputs))]
	switch input {
	case "ended":
		m.campaigning, m.handingOver = false, false
	case "cold":
		m.cooling = false
	case "failed":
		m.warm, m.cooling = false, true
	case "drained":
		m.draining, m.held = false, true
	case "refused":
		m.draining = false
	}
	return input
}

// check performs the commands of a line.
func (m *shardModel) check(line string) error {
	_, commands, _ := strings.Cut(line, " -> ")
	for name := range strings.SplitSeq(commands, ", ") {
		ok := true
		switch name {
		case "warm":
			ok = !m.warm && !m.cooling
			m.warm = true
		case "cool":
			ok = m.warm && !m.campaigning && !m.handingOver
			m.warm, m.cooling = false, true
		case "campaign":
			ok = m.warm && !m.campaigning && !m.handingOver && !m.draining && !m.held
			m.campaigning = true
		case "end campaign":
			ok = m.campaigning && (!m.draining || m.cancelled)
			m.campaigning, m.handingOver = false, true
		case "drain":
			ok = m.campaigning && !m.draining && !m.held
			m.draining, m.cancelled = true, false
		case "cancel drain":
			ok = m.draining && !m.cancelled
			m.cancelled = true
		case "resume":
			ok = m.held
			m.held = false
		}
		if !ok {
			return fmt.Errorf("%q is impossible", name)
		}
	}
	s := m.script.shard
	idle := !m.warm && !m.cooling && !m.campaigning && !m.handingOver && !m.held && (!m.draining || m.cancelled)
	if idle != s.IsIdle() {
		return fmt.Errorf("idle: %t", s.IsIdle())
	}
	if m.campaigning && !m.warm && !m.cooling {
		return errors.New("the campaign of a cold shard continues")
	}
	return nil
}

// The holder of a shard's Lease that is alive prevents adoption.
func TestShard_IsAdoptedByOneMember(t *testing.T) {
	var adopters []string
	view := &Snapshot{Synced: true, Holders: map[int]string{}, Members: []Member{
		{Identity: "a", State: State{Layout: 8}}, {Identity: "b", State: State{Layout: 8}},
	}}
	for _, self := range []string{"a", "b"} {
		s, now := NewShard(3, shardLeaseDuration), time.Now()
		f := Facts{
			Now: now, Self: self, Layout: Layout{LayoutFixed, 8}, Fleet: view, Assignment: plan.Assignment{Leader: "gone"},
		}
		s.Step(f)
		f.Now = now.Add(OrphanPeriods * shardLeaseDuration)
		if slices.Contains(s.Step(f), StartCampaign) {
			adopters = append(adopters, self)
		}
	}
	if len(adopters) != 1 {
		t.Errorf("adopted by %v", adopters)
	}
}
