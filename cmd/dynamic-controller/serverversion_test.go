package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	logsapi "k8s.io/component-base/logs/api/v1"
)

// forbidden makes the server forbid reading the version.
const forbidden = ""

func newVersionServer(t *testing.T, response string) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if response == forbidden {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		_, _ = w.Write([]byte(response))
	}))
	t.Cleanup(server.Close)
	return server
}

func TestServerVersion_WarnsOrRefuses(t *testing.T) {
	const (
		notTested    = "Kubernetes version not tested"
		notSupported = "Kubernetes version not supported"
		unknown      = "Kubernetes version unknown"
	)
	for name, test := range map[string]struct {
		response string
		allow    bool // --allow-unsupported-kubernetes
		version  string
		tested   bool
		warning  string
		err      string
	}{
		"tested":                  {response: `{"gitVersion": "v1.37.2"}`, version: "v1.37.2", tested: true},
		"another patch version":   {response: `{"gitVersion": "v1.34.0"}`, version: "v1.34.0", tested: true},
		"minimum":                 {response: `{"gitVersion": "v1.31.0"}`, version: "v1.31.0", tested: true},
		"suffix of GKE":           {response: `{"gitVersion": "v1.34.4-gke.1"}`, version: "v1.34.4-gke.1", tested: true},
		"suffix of EKS":           {response: `{"gitVersion": "v1.36.3-eks-1a"}`, version: "v1.36.3-eks-1a", tested: true},
		"plus sign":               {response: `{"gitVersion": "v1.34+"}`, version: "v1.34+", tested: true},
		"without a gitVersion":    {response: `{"major": "1", "minor": "34+"}`, version: "1.34+", tested: true},
		"unusual gitVersion":      {response: `{"major":"1","minor":"36","gitVersion":"x"}`, version: "x", tested: true},
		"between tested versions": {response: `{"gitVersion": "v1.35.2"}`, version: "v1.35.2", warning: notTested},
		"newer":                   {response: `{"gitVersion": "v1.38.0-rc.1"}`, version: "v1.38.0-rc.1", warning: notTested},
		"next major version":      {response: `{"gitVersion": "v2.0.0"}`, version: "v2.0.0", warning: notTested},
		"forbidden":               {response: forbidden, version: "unknown", warning: unknown},
		"empty":                   {response: `{}`, version: "unknown", warning: unknown},
		"unknown":                 {response: `{"gitVersion": "mine"}`, version: "mine", warning: unknown},
		"too old": {
			response: `{"gitVersion": "v1.30.14"}`, version: "v1.30.14",
			err: "kubernetes v1.30.14 is not supported: upgrade the cluster to 1.31 or later, or set " +
				"--allow-unsupported-kubernetes",
		},
		"too old, allowed": {
			response: `{"gitVersion": "v1.30.14"}`, allow: true, version: "v1.30.14", warning: notSupported,
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := newVersionServer(t, test.response)
			cfg := &rest.Config{Host: server.URL, Transport: &http.Transport{DisableKeepAlives: true}}
			v, err := checkConnection(t.Context(), logr.Discard(), cfg, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			err = v.check(testLogger(t, &out, logsapi.LoggingConfiguration{Format: formatText}), test.allow)
			if err == nil && test.err != "" || err != nil && err.Error() != test.err {
				t.Errorf("got error %v, want %q", err, test.err)
			}
			if log := out.String(); (log == "") != (test.warning == "") || !strings.Contains(log, test.warning) {
				t.Errorf("got the log %q, want %q", log, test.warning)
			}
			registry := prometheus.NewPedanticRegistry()
			registry.MustRegister(v.metric())
			families, err := registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			series := families[0].GetMetric()[0]
			version, value := series.GetLabel()[0].GetValue(), series.GetGauge().GetValue()
			if version != test.version || (value == 1) != test.tested {
				t.Errorf("got the metric %v for version %q, want %t for %q", value, version, test.tested, test.version)
			}
		})
	}
}

func TestStartup_RefusesAnUnsupportedVersion(t *testing.T) {
	server := newVersionServer(t, `{"gitVersion": "v1.30.14"}`)
	kubeconfig := writeKubeconfig(t, &clientcmdapi.Cluster{Server: server.URL}, "any")
	p := start(t, runArgs(kubeconfig)...)
	if code := p.wait(); code != 1 {
		t.Errorf("got exit code %d, want 1", code)
	}
	if want := "dynamic-controller: kubernetes v1.30.14 is not supported: "; !strings.Contains(p.output(), want) {
		t.Errorf("got %q, want %q", p.output(), want)
	}
}

// responseReplacer replaces the response to requests for the path.
type responseReplacer struct{ path, body string }

func (r responseReplacer) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		if request.URL.Path != r.path {
			return next.RoundTrip(request)
		}
		recorder := httptest.NewRecorder()
		_, _ = recorder.WriteString(r.body)
		response := recorder.Result()
		response.Request = request
		return response, nil
	})
}

func TestStartup_ServesOnAnUnsupportedVersionIfAllowed(t *testing.T) {
	a := newAPI(t)
	kubeconfig, _ := a.proxied(responseReplacer{"/version", `{"gitVersion": "v1.30.14"}`}.wrap)
	p := startServing(t, kubeconfig, append(localMetrics, "--"+flagAllowUnsupportedKubernetes)...)
	p.loggedOnce(line{Msg: "Kubernetes version not supported"})
	p.wantMetrics(`dynamiccontroller_kubernetes_tested{version="v1.30.14"} 0`)
	p.stop(syscall.SIGTERM)
}

// kubernetesModule matches the version of Kubernetes in a go.mod.
var kubernetesModule = regexp.MustCompile(`(?m)^\s*k8s\.io/kubernetes (v1\.\d+\.\d+)`)

// kubernetesVersions returns the versions that the tests run on, from the oldest to the newest.
func kubernetesVersions(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("../../test/versions/*/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	var versions []string
	for _, file := range append(files, "../../test/controlplane/go.mod") {
		match := kubernetesModule.FindStringSubmatch(readFile(t, file))
		if match == nil {
			t.Fatalf("%s has no version of k8s.io/kubernetes", file)
		}
		versions = append(versions, match[1])
	}
	slices.SortFunc(versions, func(a, b string) int {
		n, err := utilversion.MustParse(a).Compare(b)
		if err != nil {
			t.Fatal(err)
		}
		return n
	})
	return versions
}

func readFile(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The versions in testedKubernetes must be those of the control planes that the tests build.
func TestServerVersion_ListsAgree(t *testing.T) {
	var want []string
	for _, version := range kubernetesVersions(t) {
		v := utilversion.MustParse(version)
		want = append(want, utilversion.MajorMinor(v.Major(), v.Minor()).String())
	}
	if !slices.Equal(testedKubernetes, want) {
		t.Errorf("testedKubernetes is %v, but the tests build control planes of %v", testedKubernetes, want)
	}
	minimum := testedKubernetes[0]
	for file, text := range map[string]string{
		"../../install/charts/dynamic-controller/Chart.yaml": `kubeVersion: ">=` + minimum + `.0-0"`,
		"../../docs/install.md":                              "Kubernetes " + minimum + " or later is required",
	} {
		if !strings.Contains(readFile(t, file), text) {
			t.Errorf("%s does not contain %s", file, text)
		}
	}
}

// The tables of versions in README.md and docs/install.md must agree with the go.mod files.
func TestDocs_VersionsAgree(t *testing.T) {
	module := readFile(t, "../../go.mod")
	find := func(pattern string) string {
		match := regexp.MustCompile(pattern).FindStringSubmatch(module)
		if match == nil {
			t.Fatalf("go.mod does not match %s", pattern)
		}
		return match[1]
	}
	clusters := strings.ReplaceAll(strings.Join(kubernetesVersions(t), ", "), "v", "")
	row := regexp.MustCompile(`(?m)^\| \d[^|]* \| ` + regexp.QuoteMeta(strings.Join([]string{
		find(`k8s\.io/client-go (v\S+)`), find(`(?m)^go (\S+)$`), clusters,
	}, " | ")) + ` \|$`)
	var tables []string
	for _, file := range []string{"../../README.md", "../../docs/install.md"} {
		_, table, found := strings.Cut(readFile(t, file), "\n| engine |")
		table, _, _ = strings.Cut(table, "\n\n")
		if !found || !row.MatchString(table) {
			t.Errorf("the table of versions in %s has no row that matches %s", file, row)
		}
		tables = append(tables, table)
	}
	if tables[0] != tables[1] {
		t.Errorf("the tables of versions differ:\n%s\n%s", tables[0], tables[1])
	}
}
