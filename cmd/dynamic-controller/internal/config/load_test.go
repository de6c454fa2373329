package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

const head = "apiVersion: config.platform.example.com/v1alpha1\nkind: DynamicControllerConfiguration\n"

func TestLoad_NamesFilesAndFields(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		want []string // lines of the error, without the name of the file
	}{
		"only the kind":   {text: head},
		"an empty file":   {text: "", want: []string{`apiVersion: must be config.platform.example.com/v1alpha1, got ""`}},
		"a list":          {text: "[]", want: []string{"must be an object with apiVersion"}},
		"another version": {text: strings.Replace(head, "v1alpha1", "v9", 1), want: []string{"apiVersion: must be"}},
		"another kind": {
			text: strings.Replace(head, "Dynamic", "Static", 1),
			want: []string{`kind: must be DynamicControllerConfiguration, got "StaticControllerConfiguration"`},
		},
		"unknown fields": {
			text: head + "reconciling: {worker: 3}\nlogging: {Format: json}\nother: 1\ntracing: {endpont: a}",
			want: []string{
				"logging.Format: unknown field; did you mean format?",
				"other: unknown field",
				"reconciling.worker: unknown field; did you mean workers?",
				"tracing.endpont: unknown field; did you mean endpoint?",
			},
		},
		"a string in place of a number": {
			text: head + `reconciling: {workers: "3"}`,
			want: []string{"reconciling.workers: must be an integer, got string"},
		},
		"a number in place of a duration": {
			text: head + "reconciling: {resyncPeriod: 3}",
			want: []string{"reconciling.resyncPeriod: must be a string, got number"},
		},
		"a string in place of a list": {
			text: head + "platform: {namespaces: shop}",
			want: []string{"platform.namespaces: must be a list, got string"},
		},
		"a duplicate field": {text: head + "kind: A", want: []string{"yaml: ", `line 3: key "kind" already set`}},
		"two documents":     {text: head + "---\n" + head, want: []string{"must contain a single document"}},
		"no YAML":           {text: "{", want: []string{"yaml: "}},
		"an invalid sampling rate": {
			text: head + "tracing: {samplingRatePerMillion: -1}",
			want: []string{"tracing.samplingRatePerMillion: Invalid value: -1: sampling rate must be positive"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "config.yaml")
			if err := os.WriteFile(file, []byte(test.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Load(file)
			var got []string
			if err != nil {
				got = strings.Split(err.Error(), "\n")
			}
			if !slices.EqualFunc(got, test.want, func(line, want string) bool {
				return strings.HasPrefix(line, file+": "+want)
			}) {
				t.Errorf("got problems:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
		})
	}
}

func TestLoad_ReportsAMissingFile(t *testing.T) {
	if _, err := Load("missing.yaml"); err == nil || !strings.Contains(err.Error(), "missing.yaml") {
		t.Errorf("got error %v", err)
	}
}

// complete is a configuration that sets every field.
const complete = head + `
cluster: {kubeconfig: a, context: b, qps: 1.5, burst: 3, allowUnsupportedKubernetes: true}
platform:
  namespace: c
  namespaces: [d, e]
  defaultServiceAccount: f
  allowPlatformIdentity: true
  maxBlueprintMemory: 1Mi
reconciling:
  workers: 4
  resyncPeriod: 5s
  queueMaxRetries: -1
  minRetryDelay: 6ms
  maxRetryDelay: 7m
  shutdownTimeout: 8s
leaderElection:
  leaderElect: false
  leaseDuration: 9s
  renewDeadline: 10s
  retryPeriod: 11s
  resourceName: g
  resourceNamespace: h
  fenceOnServer: true
health: {bindAddress: ":1"}
metrics: {bindAddress: "0", secure: false, typeLabels: false, tlsCertFile: i, tlsPrivateKeyFile: j}
webhook: {bindAddress: ":2", name: k}
logging: {format: text, verbosity: 2, vmodule: [{filePattern: l*, verbosity: 3}, {filePattern: m, verbosity: 4}]}
featureGates: {Collections: false, ExternalReferences: true}
`

func TestSettings_ConvertAllFieldsToFlagsAndBack(t *testing.T) {
	c, err := decode([]byte(complete))
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{}
	for _, s := range c.Settings() {
		if !s.IsSet || s.Text == "" {
			t.Errorf("%s is not set", s.Path)
		}
		if _, duplicate := texts[s.Flag]; duplicate {
			t.Errorf("two fields have the flag %s", s.Flag)
		}
		texts[s.Flag] = s.Text
	}
	for flag, want := range map[string]string{
		"kube-api-qps": "1.5", "namespaces": "d,e", "metrics-secure": "false", "queue-max-retries": "-1",
		"resync-period": "5s", "vmodule": "l*=3,m=4", "feature-gates": "Collections=false,ExternalReferences=true",
	} {
		if texts[flag] != want {
			t.Errorf("--%s: got %q, want %q", flag, texts[flag], want)
		}
	}
	again, err := New(func(flag string) string { return texts[flag] })
	if err != nil || !reflect.DeepEqual(again, c) {
		t.Errorf("got %+v, %v, want %+v", again, err, c)
	}
	text, err := again.YAML()
	if err != nil {
		t.Fatal(err)
	}
	if reread, err := decode(text); err != nil || !reflect.DeepEqual(reread, c) {
		t.Errorf("got %+v, %v from\n%s", reread, err, text)
	}
}

func TestSettings_OmitAbsentFields(t *testing.T) {
	c, err := New(func(flag string) string { return map[string]string{"workers": "3", "namespaces": "[]"}[flag] })
	if err != nil {
		t.Fatal(err)
	}
	text, err := c.YAML()
	if want := head + "reconciling:\n  workers: 3\n"; err != nil || string(text) != want {
		t.Errorf("got %s, %v, want %s", text, err, want)
	}
	for _, s := range c.Settings() {
		if s.IsSet != (s.Flag == "workers") {
			t.Errorf("got %+v", s)
		}
	}
}

func Example() {
	c, err := decode([]byte(head + "reconciling: {workers: 20}"))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, setting := range c.Settings() {
		if setting.IsSet {
			fmt.Printf("%s sets --%s=%s\n", setting.Path, setting.Flag, setting.Text)
		}
	}
	// Output: reconciling.workers sets --workers=20
}
