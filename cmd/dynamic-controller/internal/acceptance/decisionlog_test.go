package acceptance

import (
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestLogChanges_LogsEachChangeOnce(t *testing.T) {
	served := &servedRevision{inputs: "1"}
	served.GVR = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "websites"}
	other := &servedRevision{inputs: "1"}
	refused := validation{rejection: &rejection{reasonInvalid, "broken"}}
	for name, test := range map[string]struct {
		before, next decision
		want         []string
	}{
		"nothing":             {},
		"served":              {next: decision{running: served}, want: []string{"Blueprint served"}},
		"still served":        {before: decision{running: served}, next: decision{running: served}},
		"rejected":            {next: decision{validation: refused}, want: []string{"Blueprint rejected"}},
		"still rejected":      {before: decision{validation: refused}, next: decision{validation: refused}},
		"deleted":             {before: decision{running: served}, want: []string{"Type released"}},
		"type changed":        {decision{running: served}, decision{running: other}, []string{"Type released"}},
		"older revision":      {next: decision{olderProblem: "a"}, want: []string{"Older revision not loaded"}},
		"loading fails":       {next: decision{loadRejection: refused.rejection}, want: []string{"Stored revision rejected"}},
		"rejected but served": {decision{}, decision{running: served, validation: refused}, []string{"Blueprint rejected"}},
	} {
		t.Run(name, func(t *testing.T) {
			var lines []string
			logChanges(funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{}),
				test.before.logged(), test.next.logged())
			got := strings.Join(lines, "\n")
			if len(lines) != len(test.want) || len(lines) == 1 && !strings.Contains(got, test.want[0]) {
				t.Errorf("logged %q, want %q", lines, test.want)
			}
		})
	}
}

func TestDecisionLog(t *testing.T) {
	log, lines := &decisionLog{logged: map[string]loggedDecision{}}, []string(nil)
	ctx := logr.NewContext(t.Context(), funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{}))
	served := decision{generation: 2, running: &servedRevision{inputs: "1"}}
	served.running.GVR = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "websites"}
	want := func(what string, want ...string) {
		t.Helper()
		if !slices.Equal(lines, want) {
			t.Errorf("%s: logged %q, want %q", what, lines, want)
		}
		lines = nil
	}
	const line = `"level"=0 "msg"="Blueprint served" ` +
		`"blueprint"="websites" "generation"=2 "type"="websites.v1.example.com"`
	log.log(ctx, "websites", served)
	want("first term", line)
	log.log(ctx, "websites", served)
	want("the same decision")
	log.reset()
	want("the end of the term")
	log.log(ctx, "websites", served)
	want("second term", line)
	log.forget(ctx, "websites")
	want("deleted", `"level"=0 "msg"="Type released" "blueprint"="websites" "type"="websites.v1.example.com"`)
	log.log(ctx, "websites", served)
	log.reset()
	lines = nil
	log.forget(ctx, "websites")
	want("deleted between two terms")
	if len(log.logged) > 0 {
		t.Errorf("the decisions %v were not discarded", log.logged)
	}
}

// A replica that does not lead must not retain the compiled programs of revisions that are no longer served.
func TestDecisionLog_DoesNotRetainRevisions(t *testing.T) {
	log := &decisionLog{logged: map[string]loggedDecision{}}
	released := make(chan struct{})
	func() {
		d := decision{running: &servedRevision{crd: &apiextensionsv1.CustomResourceDefinition{}}}
		runtime.AddCleanup(d.running, func(c chan struct{}) { close(c) }, released)
		log.log(t.Context(), "websites", d)
	}()
	for deadline := time.Now().Add(time.Minute); ; {
		runtime.GC()
		select {
		case <-released:
			runtime.KeepAlive(log)
			return
		default:
		}
		if time.Now().After(deadline) {
			t.Fatal("the revision is retained")
		}
		runtime.Gosched()
	}
}
