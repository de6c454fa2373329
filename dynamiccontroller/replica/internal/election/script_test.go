package election

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestMachine_Scripts plays the scripts in testdata. A script is a conversation with the machine of replica a, whose
// LeaseDuration is 15 s, RenewDeadline 10 s and RetryPeriod 2 s. Its lines are:
//
//	# a comment
//	role single | fleet | shard
//	wait 2s                      the machine waits for 2 s, and the time passes
//	read                         the machine reads the Lease; also create, update, release and confirm
//	read: b 15s v7               ... and the answer is a record with the holder, the duration and the time of its renewal
//	update: unknown              ... and the answer is an outcome
//	begin, renew, claimed        reports of the machine
//	lose ...                     ... with the reason
//	report b
//	stop
//	! leave                      an input: leave, lost, campaign, wake, expect b
//	! after 3s                   time passes before the machine is asked
//	! wall 3s                    the wall clock is set forward
//	! late 3s                    the next answer arrives 3 s after its request was sent
func TestMachine_Scripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for block := range strings.SplitSeq(string(text), "\n\n") {
			name, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(block), "# "), "\n")
			t.Run(strings.TrimSuffix(filepath.Base(file), ".txt")+"/"+name, func(t *testing.T) { play(t, block) })
		}
	}
}

func testConfig(role Role) Config {
	return Config{
		Identity: "a", Role: role, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second,
		RetryPeriod: 2 * time.Second, MaxClaim: time.Minute, Random: func() float64 { return 0 },
	}
}

// player plays a script.
type player struct {
	t       *testing.T
	machine *Machine
	now     Instant
	start   time.Time
	late    time.Duration
}

func play(t *testing.T, script string) {
	start := time.Unix(1000, 0)
	p := &player{t: t, machine: New(testConfig(Single)), now: Instant{start, start}, start: start}
	for line := range strings.Lines(script) {
		line = strings.TrimSpace(line)
		words := strings.Fields(line)
		switch {
		case line == "" || words[0] == "#":
		case words[0] == "role":
			p.machine = New(testConfig(map[string]Role{"single": Single, "fleet": Fleet, "shard": Shard}[words[1]]))
		case words[0] == "!":
			p.input(words[1], strings.Join(words[2:], " "))
		default:
			p.step(line)
		}
		if t.Failed() {
			return
		}
	}
}

func (p *player) pass(d time.Duration) {
	p.now.Mono, p.now.Wall = p.now.Mono.Add(d), p.now.Wall.Add(d)
}

func (p *player) input(name, argument string) {
	duration, _ := time.ParseDuration(argument)
	switch name {
	case "after", "wall", "wake":
		if op := p.machine.Next(p.now); op.Kind != Wait && op.Kind != Stop {
			p.t.Fatalf("at %s: got %s, want a wait", p.now.Mono.Sub(p.start), op.Kind)
		}
	}
	switch name {
	case "leave":
		p.machine.Leave(p.now)
	case "lost":
		p.machine.Lost()
	case "campaign":
		p.machine.Campaign()
	case "wake":
		p.machine.Wake(p.now)
	case "expect":
		p.machine.Expect(argument)
	case "after":
		p.pass(duration)
	case "wall":
		p.now.Wall = p.now.Wall.Add(duration)
	case "late":
		p.late = duration
	default:
		p.t.Fatalf("unknown input %q", name)
	}
}

// step compares the next operation with a line, and answers it.
func (p *player) step(line string) {
	p.t.Helper()
	want, answer, _ := strings.Cut(line, ": ")
	op := p.machine.Next(p.now)
	got := op.Kind.String()
	switch op.Kind {
	case Wait:
		got += " " + op.Until.Sub(p.now.Mono).String()
		p.pass(op.Until.Sub(p.now.Mono))
	case Update:
		if op.Record.IsReleased() {
			got = "release"
		} else if op.Record.Holder != "a" || op.Record.Duration != 15*time.Second {
			p.t.Errorf("update with the record %+v", op.Record)
		}
	case Lose:
		got += " " + op.Reason
	case Report:
		got = strings.TrimSpace(got + " " + op.Leader)
	}
	if got != want {
		p.t.Errorf("at %s: got %q, want %q", p.now.Mono.Sub(p.start), got, want)
		return
	}
	if op.Kind != Wait && op.Kind.Blocks() {
		a := Answer{Sent: p.now}
		p.pass(p.late)
		p.late = 0
		a.Outcome, a.Record = p.parse(op, answer)
		p.machine.Answer(op, a, p.now)
	}
}

func (p *player) parse(op Operation, answer string) (Outcome, Record) {
	for o := Succeeded; o <= Unknown; o++ {
		if answer == o.String() {
			return o, Record{}
		}
	}
	switch {
	case answer == "":
		return Succeeded, Record{}
	case op.Kind != Read:
		p.t.Fatalf("unknown answer %q", answer)
	case answer == "released":
		return Succeeded, Record{Transitions: 3}.Released(p.start)
	}
	if duration, ok := strings.CutPrefix(answer, "emptied "); ok {
		d, err := time.ParseDuration(duration)
		if err != nil {
			p.t.Fatal(err)
		}
		return Succeeded, Record{Duration: d, Acquired: p.start}
	}
	var holder, duration string
	var version int
	if _, err := fmt.Sscanf(answer, "%s %s v%d", &holder, &duration, &version); err != nil {
		p.t.Fatalf("unknown answer %q: %v", answer, err)
	}
	d, err := time.ParseDuration(duration)
	if err != nil {
		p.t.Fatal(err)
	}
	renewed := p.start.Add(time.Duration(version) * time.Second)
	return Succeeded, Record{Holder: holder, Duration: d, Acquired: p.start, Renewed: renewed}
}
