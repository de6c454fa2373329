package testkit_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dynamic-controller/engine/internal/testkit"
)

func TestParameters_AreThoseOfExportedFunctionsMethodsAndStructs(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.go": `package p
			type Config struct { Count int; Call, Other func() error; hidden func() }
			type hidden struct { Call func() }
			func With(f func(a []byte) []byte, n ...int) {}
			func without(f func()) {}
			func (c *Config) Do(f Func) {}
			func (c Config) do(f Func) {}
			func (h hidden) Do(f Func) {}`,
		"a_test.go": `package p
			func Test(f func()) {}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := testkit.Parameters(dir)
	want := map[string]string{
		"Config.Count": "int", "Config.Call": "func() error", "Config.Other": "func() error",
		"With.f": "func(a []byte) []byte", "With.n": "...int", "Config.Do.f": "Func",
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v, %s", err, diff)
	}
	if _, err := testkit.Parameters(filepath.Join(dir, "missing")); err == nil {
		t.Error("a missing directory is not an error")
	}
}
