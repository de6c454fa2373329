package decide

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

var cases = flag.String("cases", "testdata/cases.jsonl",
	"the file with the decisions that TestReplay decides again, one in each line")

// Recorded decisions are made again, with the same answers. To examine decisions from production, which
// Config.RecordDecision returns, write them to a file and set -cases.
func TestReplay(t *testing.T) {
	data, err := os.ReadFile(*cases)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(data) {
		var recorded Case
		if err := json.Unmarshal(line, &recorded); err != nil {
			t.Fatal(err)
		}
		if err := recorded.Replay(); err != nil {
			t.Errorf("%s, which had the error %q: %v", recorded.Child.ID, recorded.Err, err)
		}
	}
}

// record makes a decision with the given answers, and returns the Case as it is decoded from JSON.
func record(t *testing.T, child *Child, seen Seen, known *Known, answers ...Answer) (recorded Case) {
	t.Helper()
	recording := Record(testParent(), child, Facts{ParentExists: true}, seen, known, start)
	defer recording.Stop()
	_, more := recording.First()
	for i, answer := range answers {
		if !more {
			t.Fatalf("there is no operation %d", i)
		}
		answer.At = start.Add(time.Duration(i+1) * time.Second)
		_, more = recording.Next(answer)
	}
	data, err := json.Marshal(recording.Case)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &recorded); err != nil {
		t.Fatal(err)
	}
	return recorded
}

// A replay notices any other operation, another content, and another result.
func TestReplay_NoticesDifferences(t *testing.T) {
	one, two := desiredChild("one"), desiredChild("two")
	recorded := func() Case {
		return record(t, two, Seen{Object: stored(one, "1")}, &Known{}, Answer{Err: conflict()},
			Answer{Object: stored(one, "2")}, Answer{Object: stored(two, "3")})
	}
	same := recorded()
	if err := same.Replay(); err != nil {
		t.Fatal(err)
	}
	for difference, change := range map[string]func(*Case){
		"another desired value":   func(c *Case) { c.Child.Template.Object["data"] = map[string]any{"key": "three"} },
		"another object":          func(c *Case) { controlledBy("other")(c.Seen.Object) },
		"another parent":          func(c *Case) { c.Parent.SetUID("other") },
		"another answer":          func(c *Case) { c.Exchanges[0].Err = nil },
		"an operation less":       func(c *Case) { c.Exchanges = c.Exchanges[:2] },
		"an operation more":       func(c *Case) { c.Exchanges = append(c.Exchanges, c.Exchanges[2]) },
		"another reason":          func(c *Case) { c.Exchanges[0].Reason = "x" },
		"another result":          func(c *Case) { c.Outcome = Created },
		"an error was returned":   func(c *Case) { c.Err = "x" },
		"the child was corrected": func(c *Case) { c.Known.Hash, c.Known.Tokens = two.Hash, [3]float64{} },
	} {
		t.Run(difference, func(t *testing.T) {
			other := recorded()
			change(&other)
			if err := other.Replay(); err == nil {
				t.Error("the replay is the same")
			}
		})
	}
}

// What a run knows survives the encoding.
func TestCase_KeepsWhatIsKnown(t *testing.T) {
	path := fieldpath.MakePathOrDie("spec", "ports", fieldpath.KeyByFields("port", 80), "name")
	known := &Known{
		exists: true, futile: "futile",
		applied: lastApply{
			hash: "hash", written: Version{"uid", "7", start}, signature: signature{"values", "owned"},
			foreign: map[string]bool{".spec.ports[port=80]": true}, finding: Finding{Kind: StoredDifferently, Path: path},
		},
		kept:       othersPaths{[]fieldpath.Path{path}, []fieldpath.Path{path}},
		earlier:    othersPaths{existing: []fieldpath.Path{path}},
		recreation: recreation{"hash", start, invalid(), start, true}, judgement: judgement{"hash", true, start},
	}
	known.fights.exists = true
	known.fights.contested = map[string]*contested{
		path.String(): {path: path, value: int64(3), times: 2, last: start, open: true},
	}
	known.fights.corrections(start).take()
	known.fights.corrections(start).take()
	known.fights.creations(start).take()
	now := start.Add(3 * time.Second)
	r := newRedactor(testNames, desiredChild("one"))
	before := newCaseKnown(known, r, now)
	data, err := json.Marshal(before)
	if err != nil {
		t.Fatal(err)
	}
	var decoded caseKnown
	if err := json.Unmarshal(data, &decoded); err != nil {
		t.Fatal(err)
	}
	again := newCaseKnown(decoded.decode(now), r, now)
	if diff := cmp.Diff(asText(t, before), asText(t, again)); diff != "" {
		t.Error(diff)
	}
}

func asText(t *testing.T, value any) string {
	t.Helper()
	data, err := json.MarshalIndent(value, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// Errors keep what decisions examine.
func TestCase_KeepsErrors(t *testing.T) {
	for _, err := range []error{
		conflict(), invalid(), forbidden(), exists(), unexplained(), gone(), ErrParentGone, &meta.NoKindMatchError{},
		errUnreadable, nil,
	} {
		decoded := encodeError(err).decode()
		for name, is := range map[string]func(error) bool{
			"refusal": isRefusal, "rejection": IsRejection, "unexplained": isUnexplained, "gone": IsGone,
			"no match": meta.IsNoMatchError, "nil": func(err error) bool { return err == nil },
			"parent gone": func(err error) bool { return errors.Is(err, ErrParentGone) },
		} {
			if is(err) != is(decoded) {
				t.Errorf("%v is decoded as %v, which differs: %s", err, decoded, name)
			}
		}
	}
}

// A record of a Secret contains no values, and can nevertheless be replayed.
func TestCase_RedactsSecrets(t *testing.T) {
	const old, next = "b2xkLXNlY3JldA==", "bmV3LXNlY3JldA=="
	secret := func(value string) *Child {
		child := desiredChild("x")
		child.GroupKind = schema.GroupKind{Kind: "Secret"}
		child.Hash = "hash-of-" + value[:3]
		child.Template.SetKind("Secret")
		child.Template.Object["data"] = map[string]any{"password": value}
		annotation(testNames.Applied(), child.Hash)(child.Template)
		return child
	}
	seen := stored(secret(old), "1", annotation("kubectl.kubernetes.io/last-applied-configuration", `{"data":"`+old+`"}`))
	refused := invalid()
	known := &Known{}
	known.fights.contested = map[string]*contested{
		".data.password": {path: fieldpath.MakePathOrDie("data", "password"), value: old, times: 1, last: start},
	}
	for name, answer := range map[string]Answer{
		"written": {Object: stored(secret(next), "2")}, "refused": {Err: refused},
	} {
		t.Run(name, func(t *testing.T) {
			recorded := record(t, secret(next), Seen{Object: seen}, known, answer)
			if text := asText(t, recorded); strings.Contains(text, old) || strings.Contains(text, next) {
				t.Errorf("the record contains a value: %s", text)
			}
			if err := recorded.Replay(); err != nil {
				t.Error(err)
			}
			template, _, _ := unstructured.NestedString(recorded.Child.Template.Object, "data", "password")
			if name == "written" {
				stored, _, _ := unstructured.NestedString(recorded.Exchanges[0].Object.Object, "data", "password")
				if template != stored || template == "" {
					t.Errorf("equal values have the hashes %q and %q", template, stored)
				}
			}
			before, _, _ := unstructured.NestedString(recorded.Seen.Object.Object, "data", "password")
			if template == before {
				t.Error("different values have the same hash")
			}
		})
	}
}
