package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/test/cluster"
)

const (
	binaryEnv     = "CONTROLPLANE_BIN"
	assetsEnv     = "KUBEBUILDER_ASSETS"
	kubeconfigEnv = "TEST_KUBECONFIG"
)

func TestCluster_IsReadyAndReportsItsVersion(t *testing.T) {
	c := shared.Cluster(t)
	if err := c.WaitReady(t.Context()); err != nil {
		t.Error(err)
	}
	client := clientset(t, c)
	version, err := client.Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	if version.GitVersion != "v1.37.2" {
		t.Errorf("got version %s, want v1.37.2", version.GitVersion)
	}
	if _, err := client.CoreV1().Namespaces().Get(t.Context(), metav1.NamespaceDefault, metav1.GetOptions{}); err != nil {
		t.Errorf("get a namespace from a ready cluster: %v", err)
	}
}

func TestConfig_ReturnsACopyWithoutThrottling(t *testing.T) {
	c := shared.Cluster(t)
	config := c.Config()
	if config.QPS >= 0 {
		t.Errorf("QPS is %v, want a negative value", config.QPS)
	}
	config.Host = "elsewhere"
	if c.Config().Host == "elsewhere" {
		t.Error("Config does not return a copy")
	}
}

func TestCluster_RBACDeniesServiceAccountWithoutRole(t *testing.T) {
	ctx := t.Context()
	c := shared.Cluster(t)
	admin := clientset(t, c)
	const name = "reader"
	_, err := admin.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	token, err := admin.CoreV1().ServiceAccounts(metav1.NamespaceDefault).CreateToken(ctx, name,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(c.Config())
	config.BearerToken = token.Status.Token
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	defer httpClient.CloseIdleConnections()
	reader, err := kubernetes.NewForConfigAndClient(config, httpClient)
	if err != nil {
		t.Fatal(err)
	}

	review, err := reader.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := review.Status.UserInfo.Username, "system:serviceaccount:default:reader"; got != want {
		t.Errorf("the token authenticates as %s, want %s", got, want)
	}
	list := func(ctx context.Context, client kubernetes.Interface) error {
		_, err := client.CoreV1().Secrets(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
		return err
	}
	if err := list(ctx, admin); err != nil {
		t.Errorf("list as the administrator: %v", err)
	}
	if err := list(ctx, reader); !apierrors.IsForbidden(err) {
		t.Errorf("list without a role: got %v, want Forbidden", err)
	}

	_, err = admin.RbacV1().Roles(metav1.NamespaceDefault).Create(ctx, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"list"},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = admin.RbacV1().RoleBindings(metav1.NamespaceDefault).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: metav1.NamespaceDefault}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the role takes effect", func(ctx context.Context) error { return list(ctx, reader) })
}

func TestStart_ResumesClusterInSameDirectory(t *testing.T) {
	ctx := t.Context()
	options := cluster.Options{Dir: t.TempDir()}
	first, err := cluster.Start(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	host := first.Config().Host
	_, err = clientset(t, first).CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(ctx,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "persistent"}}, metav1.CreateOptions{})
	if err != nil {
		t.Error(err)
	}

	if _, err := cluster.Start(ctx, options); err == nil || !strings.Contains(err.Error(), "already running") {
		t.Errorf("start a second cluster in the same directory: got %v, want \"already running\"", err)
	}
	if err := first.Stop(); err != nil {
		t.Error(err)
	}

	second, err := cluster.Start(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	if got := second.Config().Host; got != host {
		t.Errorf("the host changed from %s to %s", host, got)
	}
	_, err = clientset(t, second).CoreV1().ConfigMaps(metav1.NamespaceDefault).Get(ctx, "persistent", metav1.GetOptions{})
	if err != nil {
		t.Error(err)
	}
	if err := second.Stop(); err != nil {
		t.Error(err)
	}
}

// lockedBuffer is a buffer that can be read and written concurrently.
type lockedBuffer struct {
	mu     sync.Mutex // Guards buffer.
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

func TestLog_ReceivesOutputOfBinary(t *testing.T) {
	var log lockedBuffer
	c, err := cluster.Start(t.Context(), cluster.Options{Log: &log})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.APIServer().Kill(); err != nil {
		t.Error(err)
	}
	// The binary reports the exit asynchronously.
	const want = "restart it with: "
	eventually(t, "the exit of the API server is reported", func(context.Context) error {
		if got := log.String(); !strings.Contains(got, want) {
			return fmt.Errorf("the log is %q, want it to contain %q", got, want)
		}
		return nil
	})
	if err := c.Stop(); err != nil {
		t.Error(err)
	}
}

// dirWithFile returns a temporary directory that contains one file.
func dirWithFile(t *testing.T, file, content string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, file)), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// setBinary replaces the control plane binary with a shell script.
func setBinary(t *testing.T, script string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "controlplane")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv(binaryEnv, path)
}

// usedPort returns a port on which a listener is open until the test ends.
func usedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func TestStart_ReportsCauseOfFailure(t *testing.T) {
	for _, c := range []struct {
		name     string
		setUp    func(t *testing.T) (dir string)
		is       error
		contains []string
	}{
		{
			name:     "the binary has not been built",
			setUp:    func(t *testing.T) string { t.Setenv(binaryEnv, t.TempDir()+"/none"); return "" },
			is:       cluster.ErrNoBinary,
			contains: []string{"run make controlplane first"},
		},
		{
			name:     "the working directory is outside the module",
			setUp:    func(t *testing.T) string { t.Setenv(binaryEnv, ""); t.Chdir(t.TempDir()); return "" },
			contains: []string{"is not in module", binaryEnv},
		},
		{
			name: "KUBEBUILDER_ASSETS names a folder without kube-apiserver",
			setUp: func(t *testing.T) string {
				t.Setenv(binaryEnv, "")
				t.Setenv(assetsEnv, dirWithFile(t, "etcd", ""))
				return ""
			},
			is:       fs.ErrNotExist,
			contains: []string{assetsEnv, "/kube-apiserver: no such file", "unset the variable"},
		},
		{
			name:     "the binary is another program",
			setUp:    func(t *testing.T) string { setBinary(t, "echo no such flag >&2; exit 3"); return "" },
			contains: []string{"no such flag", "exit status 3"},
		},
		{
			name:  "the binary never becomes ready",
			setUp: func(t *testing.T) string { setBinary(t, "exec sleep 1000"); return "" },
			is:    context.DeadlineExceeded,
		},
		{
			name:     "the directory cannot be created",
			setUp:    func(t *testing.T) string { return filepath.Join(dirWithFile(t, "file", ""), "file", "dir") },
			contains: []string{"create directory: mkdir ", "not a directory"},
		},
		{
			name: "the port is in use",
			setUp: func(t *testing.T) string {
				return dirWithFile(t, "ports.json", `{"apiServer":`+usedPort(t)+`}`)
			},
			contains: []string{"no port for the API server: ", "address already in use"},
		},
		{
			name:     "etcd exits while it is starting",
			setUp:    func(t *testing.T) string { return dirWithFile(t, "etcd/member/snap/db", "not a database") },
			contains: []string{"etcd exited before it was ready", "the last lines of ", "etcd.log"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := c.setUp(t)
			timeout := deadline
			if errors.Is(c.is, context.DeadlineExceeded) {
				timeout = 100 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			started, err := cluster.Start(ctx, cluster.Options{Dir: dir})
			if err == nil {
				t.Fatal(errors.Join(errors.New("Start succeeded"), started.Stop()))
			}
			if c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("got %v, want %v", err, c.is)
			}
			for _, want := range c.contains {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got error %v, want it to contain %q", err, want)
				}
			}
			t.Log(err)
		})
	}
}

func TestConnect_ComponentsCannotBeControlled(t *testing.T) {
	c := shared.Cluster(t)
	t.Setenv(kubeconfigEnv, c.Kubeconfig())
	t.Setenv(binaryEnv, "/nonexistent") // The binary must not be used.
	external := cluster.NewShared(cluster.Options{})
	connected := external.Cluster(t)
	if err := connected.WaitReady(t.Context()); err != nil {
		t.Error(err)
	}
	for name, call := range map[string]func() error{
		"Kill":   connected.APIServer().Kill,
		"Stop":   connected.Etcd().Stop,
		"Pause":  connected.APIServer().Pause,
		"Resume": connected.APIServer().Resume,
		"Start":  func() error { return connected.Etcd().Start(t.Context()) },
	} {
		if err := call(); !errors.Is(err, cluster.ErrExternal) {
			t.Errorf("%s: got %v, want %v", name, err, cluster.ErrExternal)
		}
	}
	if err := connected.Stop(); err != nil {
		t.Error(err)
	}
	if err := c.WaitReady(t.Context()); err != nil {
		t.Errorf("the cluster is not ready after Stop was called on the external cluster: %v", err)
	}
}

func TestShared_FailsEveryTestIfTheClusterCannotStart(t *testing.T) {
	t.Setenv(kubeconfigEnv, filepath.Join(t.TempDir(), "none"))
	broken := cluster.NewShared(cluster.Options{})
	for range 2 {
		test := &fakeTest{}
		if broken.Cluster(test); !test.failed {
			t.Error("Cluster did not fail the test")
		}
	}
	if code := broken.Main(runner(func() int { return 7 })).Run(); code != 7 {
		t.Errorf("got exit code %d, want 7", code)
	}
}

func TestPool_GivesAClusterToOneTestAtATime(t *testing.T) {
	c := shared.Cluster(t)
	t.Setenv(kubeconfigEnv, c.Kubeconfig())
	synctest.Test(t, func(t *testing.T) {
		pool := cluster.NewPool(2, cluster.Options{}) // There is only one external cluster.
		first, second := &fakeTest{}, &fakeTest{}
		pool.Take(first)
		hasTaken := false
		go func() {
			pool.Take(second)
			hasTaken = true
		}()
		if synctest.Wait(); hasTaken {
			t.Error("two tests have the same cluster")
		}
		first.end()
		if synctest.Wait(); !hasTaken {
			t.Error("the cluster is not free after the test has ended")
		}
		if first.failed || second.failed {
			t.Error("Take failed a test")
		}
		if code := pool.Main(runner(func() int { return 7 })).Run(); code != 7 {
			t.Errorf("got exit code %d, want 7", code)
		}
	})
}

type fakeTest struct {
	failed bool
	end    func()
}

func (*fakeTest) Helper()                 {}
func (f *fakeTest) Fatalf(string, ...any) { f.failed = true }
func (f *fakeTest) Cleanup(end func())    { f.end = end }

type runner func() int

func (r runner) Run() int { return r() }
