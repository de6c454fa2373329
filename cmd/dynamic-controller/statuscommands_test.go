package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/status"
)

// statusScene is a platform whose leader and standby serve their status. An instance is parked, and a Blueprint is
// rejected.
type statusScene struct {
	*api
	kubelet          *kubelet
	leader, standby  string // URLs
	authority, lease string
	pod              string
	operator, reader string // kubeconfigs with tokens
	certificate      string // a kubeconfig with a client certificate
}

func newStatusScene(t *testing.T) *statusScene {
	a := newAPI(t)
	dir := t.TempDir()
	s := &statusScene{
		api: a, kubelet: a.startKubelet(), lease: leaseOf(t), authority: filepath.Join(dir, "tls.crt"), pod: a.namespace,
		certificate: a.cluster.Kubeconfig(),
	}
	keyFile := filepath.Join(dir, "tls.key")
	roots := x509.NewCertPool()
	roots.AddCert(writeCertificate(t, s.authority, keyFile))
	begin := func() *process {
		cmd := exec.Command(binary, replicaArgs(t, a.cluster.Kubeconfig(), "--"+flagMetrics, "127.0.0.1:0",
			"--"+flagCertFile, s.authority, "--"+flagKeyFile, keyFile, "--queue-max-retries", "2")...)
		cmd.Env = append(os.Environ(), "POD_NAME="+s.pod)
		return startCommand(t, cmd)
	}
	p := begin()
	p.waitLog(line{Msg: "Started leading"})
	s.leader = p.diagnostics(roots).url
	s.standby = begin().diagnostics(roots).url
	_, port, err := net.SplitHostPort(strings.TrimPrefix(s.leader, "https://"))
	if err != nil {
		t.Fatal(err)
	}
	number, _ := strconv.Atoi(port)
	s.kubelet.addPod(metav1.NamespaceDefault, s.pod, int32(number))
	connect := connectRules(t, s.lease, "unknown", "released", "elsewhere", "closed")
	s.operator = a.account("operator", slices.Concat(exampleRules(t, "dynamic-controller-operator"), connect)...)
	s.reader = a.account("reader", append(connect, rbacv1.PolicyRule{
		NonResourceURLs: []string{status.Path}, Verbs: []string{"get"},
	})...)
	a.serviceAccount(a.namespace, "web")
	a.consent(a.namespace, "web", "sites."+a.group)
	a.apply(sites)
	a.apply("{apiVersion: GROUP/v1, kind: Site, metadata: {name: flowers}, spec: {text: roses}}")
	a.apply(changed(websites, change{"${self.spec.text}", "${self.spec.txt}"}))
	p.waitLog(line{Msg: "Reconcile failed, object parked", Object: a.namespace + "/flowers"})
	a.waitBlueprint("websites", is("Accepted", "False"))
	return s
}

// connectRules returns the rules of the operators' Role, for other Leases.
func connectRules(t *testing.T, leases ...string) (rules []rbacv1.PolicyRule) {
	t.Helper()
	for _, r := range roleRules(t, "Role", "dynamic-controller-operator") {
		if !slices.Contains(r.Resources, "leases") {
			rules = append(rules, r)
			continue
		}
		if !slices.Equal(r.ResourceNames, []string{"dynamic-controller"}) {
			t.Errorf("the Role permits access to other Leases: %v", r)
		}
		for _, lease := range leases {
			named := r
			named.ResourceNames = []string{lease}
			rules = append(rules, named)
		}
	}
	return rules
}

// tokenOf returns the token in a kubeconfig.
func tokenOf(t *testing.T, kubeconfig string) string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return config.AuthInfos["it"].Token
}

// run runs a command. URL, TOKEN, NAMESPACE and similar words in the arguments are replaced.
func (s *statusScene) run(kubeconfig string, args ...string) (out string, code int) {
	s.Helper()
	url := []string{"--tls-server-name", "localhost", "--certificate-authority", s.authority, "--url"}
	all := []string{args[0], "--" + flagPlatformNamespace, metav1.NamespaceDefault, "--" + flagLeaseName, s.lease}
	for _, arg := range args[1:] {
		switch arg {
		case "LEADER":
			all = append(append(all, url...), s.leader)
		case "STANDBY":
			all = append(append(all, url...), s.standby)
		case "OPERATOR":
			all = append(all, "--token", tokenOf(s.T, s.operator))
		default:
			all = append(all, strings.NewReplacer("GROUP", s.group, "NAMESPACE", s.namespace).Replace(arg))
		}
	}
	cmd := exec.CommandContext(s.Context(), binary, all...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	data, err := cmd.CombinedOutput()
	var failed *exec.ExitError
	switch {
	case errors.As(err, &failed):
		code = failed.ExitCode()
	case err != nil:
		s.Fatal(err)
	}
	return string(data), code
}

// waitRun waits until a command has an exit code and its output contains the words.
func (s *statusScene) waitRun(kubeconfig string, args []string, code int, words ...string) (out string) {
	s.Helper()
	eventually(s.T, func() error {
		got := 0
		out, got = s.run(kubeconfig, args...)
		if got != code {
			return fmt.Errorf("%v: the exit code is %d, want %d: %s", args, got, code, out)
		}
		for _, word := range words {
			word = strings.NewReplacer("GROUP", s.group, "NAMESPACE", s.namespace).Replace(word)
			if !strings.Contains(strings.Join(strings.Fields(out), " "), word) {
				return fmt.Errorf("%v: the output has no %q: %s", args, word, out)
			}
		}
		return nil
	})
	return out
}

// execKubeconfig returns a copy of a kubeconfig whose token comes from a credential plugin.
func execKubeconfig(t *testing.T, kubeconfig string) string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	plugin := filepath.Join(t.TempDir(), "plugin")
	script := fmt.Sprintf("#!/bin/sh\necho '{\"apiVersion\": \"client.authentication.k8s.io/v1\", "+
		"\"kind\": \"ExecCredential\", \"status\": {\"token\": %q}}'\n", config.AuthInfos["it"].Token)
	if err := os.WriteFile(plugin, []byte(script), 0o700); err != nil { //nolint:gosec // it is executed
		t.Fatal(err)
	}
	config.AuthInfos["it"].Token = ""
	config.AuthInfos["it"].Exec = &clientcmdapi.ExecConfig{
		Command: plugin, APIVersion: "client.authentication.k8s.io/v1",
		InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// addLease creates a Lease.
func (s *statusScene) addLease(name, holder string) {
	s.Helper()
	leases := s.kube.CoordinationV1().Leases(metav1.NamespaceDefault)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if holder != "" {
		lease.Spec.HolderIdentity = &holder
	}
	if _, err := leases.Create(s.Context(), lease, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		if err := leases.Delete(context.WithoutCancel(s.Context()), name, metav1.DeleteOptions{}); err != nil {
			s.Error(err)
		}
	})
}

// The cases run on one platform, in this order.
func TestStatusCommands(t *testing.T) {
	s := newStatusScene(t)
	s.kubelet.addPod(metav1.NamespaceDefault, s.pod+"-closed", 1)
	s.addLease("closed", s.pod+"-closed_1")
	s.addLease("released", "")
	s.addLease("elsewhere", "a-host_1")
	plugin, lease := execKubeconfig(t, s.operator), "--"+flagLeaseName
	for _, test := range []struct {
		name       string
		kubeconfig string
		args       []string
		code       int
		words      []string
	}{
		{"the leader through the API server", s.operator, []string{"status"}, 1, []string{
			"Replica: NAMESPACE_", "Leads: yes, term 1", "Caches: synced", "Types: 2: 2 Synced",
			"Blueprints: 2: 1 Rejected, 1 Served", "1 parked",
			"Problems: Blueprint websites.GROUP: Invalid: spec.resources[1].template.data.text",
			"Parked objects, which are not reconciled until they change: 1",
		}},
		{"a token from a credential plugin", plugin, []string{"status"}, 1, []string{"Leads: yes"}},
		{"a client certificate and a token", s.certificate, []string{"status", "OPERATOR"}, 1, []string{"Leads: yes"}},
		{"a client certificate", s.certificate, []string{"status"}, 2, []string{
			"has no bearer token", `--token "$(kubectl create token -n `,
		}},
		{"a URL", s.operator, []string{"status", "LEADER"}, 1, []string{"Leads: yes, term 1"}},
		{"a standby replica, without a kubeconfig", filepath.Join(t.TempDir(), "missing"),
			[]string{"status", "STANDBY", "OPERATOR"}, 1,
			[]string{"Leads: no, the leader is NAMESPACE_", "Types: 2: 2 Synced", "Blueprints: 2: 1 Rejected, 1 Served"}},
		{"a certificate that cannot be verified", s.operator, []string{"status", "--url", s.leader}, 2,
			[]string{"tls: failed to verify certificate: ", "set --certificate-authority and --tls-server-name"}},
		{"a certificate that is not verified", s.operator,
			[]string{"status", "--url", s.leader, "--insecure-skip-tls-verify"}, 1, []string{"Leads: yes"}},
		{"an address without TLS", s.operator, []string{"status", "--url", "http://127.0.0.1:1"}, 2,
			[]string{`--url: "http://127.0.0.1:1": must have the form https://HOST:PORT`}},
		{"a wrong token", s.certificate, []string{"status", "--token", "wrong"}, 2,
			[]string{"the replica does not accept the token"}},
		{"impersonation", s.certificate, []string{"status", "--as", "admin", "LEADER"}, 2,
			[]string{"a replica does not impersonate users"}},
		{"an unknown Lease", s.operator, []string{"status", lease, "unknown"}, 2,
			[]string{"the Lease default/unknown does not exist: set --platform-namespace"}},
		{"a Lease without a holder", s.operator, []string{"status", lease, "released"}, 2,
			[]string{"no replica holds the Lease default/released"}},
		{"a leader outside of the cluster", s.operator, []string{"status", lease, "elsewhere"}, 2,
			[]string{`read the Pod of the leader "a-host_1": pods "a-host" not found`, "set --url"}},
		{"a Pod without the diagnostics", s.operator, []string{"status", lease, "closed"}, 2,
			[]string{"connect to the replica: ", "connection refused"}},
		{"an unknown output format", s.operator, []string{"types", "-o", "xml"}, 2, []string{"--output: must be text, wide"}},
		{"types", s.operator, []string{"types"}, 0, []string{
			"NAME KIND STATE AGE OBJECTS FAILING PARKED QUEUED MESSAGE", "blueprints.v1alpha1.platform.example.com Blueprint",
			"sites.v1.GROUP Site Synced",
		}},
		{"types as JSON", s.operator, []string{"types", "-o", "json"}, 0, []string{`"resource": "sites", "kind": "Site"`}},
		{"types with all columns", s.operator, []string{"types", "-o", "wide", "LEADER"}, 0,
			[]string{"sites.v1.GROUP Site sites.GROUP Synced"}},
		{"everything as YAML", s.operator, []string{"status", "-o", "yaml"}, 1,
			[]string{"kind: ReplicaStatus", "identity: NAMESPACE_", "reason: Invalid"}},
		{"parked objects", s.reader, []string{"parked"}, 1, []string{
			"NAME AGE FAILURES ERROR sites.v1.GROUP NAMESPACE flowers", " 3 ", "flowers-page",
		}},
		{"a parked object", s.operator, []string{"parked", "sites.GROUP/flowers", "-n", "NAMESPACE"}, 1,
			[]string{"sites.v1.GROUP NAMESPACE flowers"}},
		{"another object", s.operator, []string{"parked", "sites.GROUP/trees", "-n", "NAMESPACE"}, 0,
			[]string{"No objects are parked."}},
		{"an unknown type", s.operator, []string{"parked", "ponds"}, 2, []string{`"ponds": no served type has this name`}},
		{"a retry of an unknown type", s.operator, []string{"parked", "ponds", "--retry"}, 2,
			[]string{`"ponds": no served type has this name`}},
		{"a kind", s.operator, []string{"parked", "Site/flowers", "-n", "NAMESPACE"}, 1, []string{"NAMESPACE flowers"}},
		{"a retry without permission", s.reader, []string{"parked", "--retry"}, 2, []string{
			`cannot post path "/status/retry": bind the user to the ClusterRole dynamic-controller-operator`,
		}},
		{"a retry on a standby replica", s.operator, []string{"parked", "--retry", "STANDBY"}, 2,
			[]string{"409 Conflict: this replica is not the leader: the leader is"}},
		{"a retry of another object", s.operator, []string{"parked", "sites/trees", "-n", "NAMESPACE", "--retry"}, 0,
			[]string{"Retrying parked objects: 0"}},
		{"a retry of the object", s.operator, []string{"parked", "sites/flowers", "-n", "NAMESPACE", "--retry"}, 0,
			[]string{"Retrying parked objects: 1"}},
	} {
		t.Logf("%s: %v", test.name, test.args)
		s.waitRun(test.kubeconfig, test.args, test.code, test.words...)
	}
	if s.kubelet.forwards.Load() == 0 {
		t.Error("no port was forwarded")
	}
	// The retried object fails and is parked again.
	s.waitRun(s.operator, []string{"parked"}, 1, "sites.v1.GROUP NAMESPACE flowers")

	s.grant(s.namespace, s.namespace, "web", rule(writeChildren, "", "configmaps"))
	eventually(t, func() error { // a denial can be cached for a moment
		if out, code := s.run(s.operator, "parked", "--retry", "LEADER"); code != 0 {
			return fmt.Errorf("got %d, %s", code, out)
		}
		site, err := s.get("GROUP/v1", "Site", "flowers")
		if err != nil {
			return err
		}
		return is("Ready", "True")(site)
	})
	s.waitRun(s.operator, []string{"parked"}, 0, "No objects are parked.")
}
