package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/server/flagz"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/config"
)

const configHead = "apiVersion: " + config.APIVersion + "\nkind: " + config.Kind + "\n"

// writeConfig writes a configuration file and returns its name.
func writeConfig(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(configHead+text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// A new flag must have a field in package config, with the name of the flag in the field's tag.
func TestConfig_HasAFieldForEachFlag(t *testing.T) {
	var flags, fields []string
	newRunCommand(nil).Flags().VisitAll(func(f *pflag.Flag) {
		if f.Name != flagConfig && f.Name != "help" {
			flags = append(flags, f.Name)
		}
	})
	for _, s := range (&config.Configuration{}).Settings() {
		fields = append(fields, s.Flag)
	}
	slices.Sort(flags)
	slices.Sort(fields)
	if !slices.Equal(flags, fields) {
		t.Errorf("got flags\n%q and the flags of fields\n%q", flags, fields)
	}
}

func TestConfig_FlagsOverrideTheFile(t *testing.T) {
	file := writeConfig(t, `
reconciling: {workers: 7, resyncPeriod: 1h}
platform: {namespaces: [shop, team-a], allowPlatformIdentity: true}
metrics: {secure: false, bindAddress: "127.0.0.1:8080"}
logging: {format: text, verbosity: 2, vmodule: [{filePattern: reflector, verbosity: 4}]}
featureGates: {Collections: false, ExternalReferences: false}
tracing: {endpoint: "localhost:4317", samplingRatePerMillion: 100}
`)
	o, err := parse("--config", file, "--workers=3", "--verbosity=1", "--feature-gates=Collections=true")
	if err != nil {
		t.Fatal(err)
	}
	if o.engine.Workers != 3 || o.verbosity != 1 || !o.features.Enabled("Collections") {
		t.Errorf("got %d workers, verbosity %d and gates %v", o.engine.Workers, o.verbosity, o.featureGates)
	}
	if o.engine.ResyncPeriod != time.Hour || !slices.Equal(o.platform.Namespaces, []string{"shop", "team-a"}) ||
		!o.platform.AllowPlatformIdentity || o.metricsSecure || o.logFormat != formatText || len(o.vmodule) != 1 ||
		o.features.Enabled("ExternalReferences") {
		t.Errorf("got options %+v", o)
	}
	if o.tracing == nil || *o.tracing.Endpoint != "localhost:4317" {
		t.Errorf("got tracing %+v", o.tracing)
	}
	shown := flagz.NamedFlagSetsReader{FlagSets: o.sections}.GetFlagz()
	for flag, want := range map[string]string{
		"workers": "3", "resync-period": "1h0m0s", "namespaces": "[shop,team-a]", "v": "1", "config": file,
		"feature-gates": "Collections=true,ExternalReferences=false", "vmodule": "reflector=4",
	} {
		if shown[flag] != want {
			t.Errorf("/flagz shows %s=%q, want %q", flag, shown[flag], want)
		}
	}
}

func TestConfig_ReportsProblemsByFileAndField(t *testing.T) {
	file := writeConfig(t, `
reconciling: {workers: 0, shutdownTimeout: "20"}
leaderElection: {leaseDuration: 12s}
featureGates: {Collection: false}
`)
	_, err := parse("--config", file, "--min-retry-delay=0")
	want := []string{
		file + `: featureGates: unknown feature gate Collection; did you mean Collections?, got "Collection=false"`,
		file + ": leaderElection.leaseDuration: must exceed --leader-elect-renew-deadline 10s",
		"--min-retry-delay: must be positive, got 0s",
		file + `: reconciling.shutdownTimeout: must be a duration such as 1m30s, got "20"`,
		file + ": reconciling.workers: must be at least 1, got 0",
	}
	var got []string
	if err != nil {
		got = strings.Split(err.Error(), "\n")
	}
	if !slices.EqualFunc(got, want, strings.HasPrefix) {
		t.Errorf("got problems:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if _, err := parse("--config", "missing.yaml"); err == nil || !strings.Contains(err.Error(), "missing.yaml") {
		t.Errorf("got error %v for a missing file", err)
	}
}

func printConfig(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	cmd := newCommand("dynamic-controller")
	cmd.SetOut(&out)
	cmd.SetArgs(append([]string{"config"}, args...))
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestConfigCommand_PrintsTheEffectiveConfiguration(t *testing.T) {
	t.Setenv("POD_NAMESPACE", "from-the-pod")
	defaults := printConfig(t)
	for _, want := range []string{configHead[:20], "workers: 10\n", "bindAddress: \"0\"\n", "leaseDuration: 15s\n"} {
		if !strings.Contains(defaults, want) {
			t.Errorf("the defaults have no %q:\n%s", want, defaults)
		}
	}
	for _, unwanted := range []string{"from-the-pod", "kubeconfig", "namespaces", "tracing"} {
		if strings.Contains(defaults, unwanted) {
			t.Errorf("the defaults have %q:\n%s", unwanted, defaults)
		}
	}
	file := writeConfig(t, "reconciling: {workers: 7}\ntracing: {samplingRatePerMillion: 5}")
	printed := printConfig(t, "--config", file, "--namespaces=shop,team-a", "--feature-gates=Collections=false")
	for _, want := range []string{
		"workers: 7\n", "- shop\n  - team-a\n", "Collections: false\n", "samplingRatePerMillion: 5\n",
	} {
		if !strings.Contains(printed, want) {
			t.Errorf("the configuration has no %q:\n%s", want, printed)
		}
	}
	again := filepath.Join(t.TempDir(), "again.yaml")
	if err := os.WriteFile(again, []byte(printed), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := printConfig(t, "--config", again); got != printed {
		t.Errorf("got\n%s from\n%s", got, printed)
	}
}

// The configuration file in docs/operations.md must be valid.
func TestDocs_ConfigurationIsValid(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	snippets := regexp.MustCompile(`(?m)^    apiVersion: config\.platform\.example\.com/\S+\n(    .*\n)*`).FindAllString(
		string(text), -1)
	if len(snippets) == 0 {
		t.Error("docs/operations.md contains no configuration file")
	}
	for _, snippet := range snippets {
		file := filepath.Join(t.TempDir(), "config.yaml")
		content := strings.ReplaceAll("\n"+snippet, "\n    ", "\n")
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if o, err := parse("--config", file); err != nil || o.tracing == nil {
			t.Errorf("got error %v for\n%s", err, content)
		}
	}
}
