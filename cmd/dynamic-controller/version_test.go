package main

import (
	"encoding/json"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

func TestVersion_PrintsTheBuild(t *testing.T) {
	run := func(args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), binary, append([]string{"version"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	var fromJSON, fromYAML buildInfo
	if err := json.Unmarshal([]byte(run("-o", "json")), &fromJSON); err != nil {
		t.Error(err)
	}
	if err := yaml.Unmarshal([]byte(run("-o", "yaml")), &fromYAML); err != nil {
		t.Error(err)
	}
	if fromJSON != fromYAML || fromJSON.GoVersion != runtime.Version() || !strings.HasPrefix(fromJSON.Kubernetes, "v0.") ||
		fromJSON.Version == "" {
		t.Errorf("got %+v as JSON, and %+v as YAML", fromJSON, fromYAML)
	}
	if text := run(); !strings.HasPrefix(text, "dynamic-controller "+fromJSON.Version+" (commit ") {
		t.Errorf("got %s", text)
	}
}

func TestBuildInfo_PrefersTheVersionOfTheLinker(t *testing.T) {
	built := &debug.BuildInfo{
		Main: debug.Module{Version: "v0.0.0-2026"},
		Settings: []debug.BuildSetting{
			{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.time", Value: "today"}, {Key: "vcs.modified", Value: "true"},
		},
		Deps: []*debug.Module{{Path: "k8s.io/client-go", Version: "v0.37.2"}},
	}
	want := buildInfo{
		Version: "v0.0.0-2026", Commit: "abc", Modified: true, CommitDate: "today", Kubernetes: "v0.37.2",
		GoVersion: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
	if diff := cmp.Diff(want, newBuildInfo(built)); diff != "" {
		t.Error(diff)
	}
	if got := want.String(); !strings.HasPrefix(got, "dynamic-controller v0.0.0-2026 (commit abc, modified, client-go ") {
		t.Errorf("got %s", got)
	}
	version, commit = "v1.2.3", "abc"
	t.Cleanup(func() { version, commit = "", "" })
	want.Version = "v1.2.3"
	if diff := cmp.Diff(want, newBuildInfo(built)); diff != "" {
		t.Error(diff)
	}
	commit = "def" // the date and the changes of another commit are not known
	want.Commit, want.CommitDate, want.Modified = "def", "", false
	if diff := cmp.Diff(want, newBuildInfo(built)); diff != "" {
		t.Error(diff)
	}
}
