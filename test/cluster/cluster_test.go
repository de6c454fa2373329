package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
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
	kubeconfigEnv = "TEST_KUBECONFIG"
)

func TestItIsReadyAndTheVersionItShouldBe(t *testing.T) {
	c := shared.Cluster(t)
	if err := c.WaitReady(t.Context()); err != nil {
		t.Error(err)
	}
	client := clientset(t, c)
	version, err := client.Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	if version.GitVersion != "v1.37.1" {
		t.Errorf("the API server calls itself %s", version.GitVersion)
	}
	if _, err := client.CoreV1().Namespaces().Get(t.Context(), metav1.NamespaceDefault, metav1.GetOptions{}); err != nil {
		t.Errorf("ready, but: %v", err)
	}
}

func TestConfigIsACopyWithoutThrottling(t *testing.T) {
	c := shared.Cluster(t)
	config := c.Config()
	if config.QPS >= 0 {
		t.Errorf("QPS is %v", config.QPS)
	}
	config.Host = "elsewhere"
	if c.Config().Host == "elsewhere" {
		t.Error("it is shared")
	}
}

func TestRBACDeniesAServiceAccountUntilARoleAllowsIt(t *testing.T) {
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

	who, err := reader.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := who.Status.UserInfo.Username, "system:serviceaccount:default:reader"; got != want {
		t.Errorf("the token is %s's, want %s", got, want)
	}
	list := func(ctx context.Context, client kubernetes.Interface) error {
		_, err := client.CoreV1().Secrets(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
		return err
	}
	if err := list(ctx, admin); err != nil {
		t.Errorf("the administrator: %v", err)
	}
	if err := list(ctx, reader); !apierrors.IsForbidden(err) {
		t.Errorf("without a role: %v", err)
	}

	_, err = admin.RbacV1().Roles(metav1.NamespaceDefault).Create(ctx, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"list"}}},
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
	eventually(t, "the role is heeded", func(ctx context.Context) error { return list(ctx, reader) })
}

func TestAKeptDirectoryIsTheSameCluster(t *testing.T) {
	ctx := t.Context()
	options := cluster.Options{Dir: t.TempDir()}
	first, err := cluster.Start(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	host := first.Config().Host
	_, err = clientset(t, first).CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(ctx,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}, metav1.CreateOptions{})
	if err != nil {
		t.Error(err)
	}

	if _, err := cluster.Start(ctx, options); err == nil || !strings.Contains(err.Error(), "already runs") {
		t.Errorf("a second one on the same directory: %v", err)
	}
	if err := first.Stop(); err != nil {
		t.Error(err)
	}

	second, err := cluster.Start(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	if got := second.Config().Host; got != host {
		t.Errorf("it was %s and is %s", host, got)
	}
	_, err = clientset(t, second).CoreV1().ConfigMaps(metav1.NamespaceDefault).Get(ctx, "kept", metav1.GetOptions{})
	if err != nil {
		t.Error(err)
	}
	if err := second.Stop(); err != nil {
		t.Error(err)
	}
}

// lockedBuffer can be read while it is being written.
type lockedBuffer struct {
	mu     sync.Mutex // guards buffer
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

func TestLog_ReceivesTheOutputOfTheBinary(t *testing.T) {
	var log lockedBuffer
	c, err := cluster.Start(t.Context(), cluster.Options{Log: &log})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.APIServer().Kill(); err != nil {
		t.Error(err)
	}
	// The binary reports the end of the API server after it has noticed it.
	const want = "start it again with: "
	for deadline := time.Now().Add(time.Minute); !strings.Contains(log.String(), want); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("the log is %q, want %q", log.String(), want)
			break
		}
	}
	if err := c.Stop(); err != nil {
		t.Error(err)
	}
}

func TestAStartThatFailsSaysWhy(t *testing.T) {
	dirWith := func(t *testing.T, file, content string) string {
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, file)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	script := func(t *testing.T, content string) {
		path := filepath.Join(t.TempDir(), "controlplane")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+content+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		t.Setenv(binaryEnv, path)
	}
	for _, c := range []struct {
		name string
		dir  func(t *testing.T) string // or what else makes it fail
		is   error
		says []string
	}{
		{
			name: "a binary that was not built",
			dir:  func(t *testing.T) string { t.Setenv(binaryEnv, t.TempDir()+"/none"); return "" },
			is:   cluster.ErrNoBinary,
			says: []string{"run make controlplane first"},
		},
		{
			name: "a package outside of the module",
			dir:  func(t *testing.T) string { t.Setenv(binaryEnv, ""); t.Chdir(t.TempDir()); return "" },
			says: []string{"is not in module", binaryEnv},
		},
		{
			name: "a binary that is something else",
			dir:  func(t *testing.T) string { script(t, "echo no such flag >&2; exit 3"); return "" },
			says: []string{"no such flag", "exit status 3"},
		},
		{
			name: "a binary that never gets ready",
			dir:  func(t *testing.T) string { script(t, "exec sleep 1000"); return "" },
			is:   context.DeadlineExceeded,
		},
		{
			name: "a directory that cannot be made",
			dir:  func(t *testing.T) string { return filepath.Join(dirWith(t, "file", ""), "file", "dir") },
			says: []string{"cannot be made: mkdir ", "not a directory"},
		},
		{
			name: "a port that is taken",
			dir: func(t *testing.T) string {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { l.Close() })
				_, port, err := net.SplitHostPort(l.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				return dirWith(t, "ports.json", `{"apiServer":`+port+`}`)
			},
			says: []string{"no port for the API server: ", "address already in use"},
		},
		{
			name: "an etcd that dies while starting",
			dir:  func(t *testing.T) string { return dirWith(t, "etcd/member/snap/db", "this is no database") },
			says: []string{"etcd ended while starting", "the end of ", "etcd.log"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := c.dir(t)
			tooLong := deadline
			if errors.Is(c.is, context.DeadlineExceeded) {
				tooLong = 100 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), tooLong)
			defer cancel()
			started, err := cluster.Start(ctx, cluster.Options{Dir: dir})
			if err == nil {
				t.Fatal(errors.Join(errors.New("it started"), started.Stop()))
			}
			if c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("got %v, want %v", err, c.is)
			}
			for _, want := range c.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want it to say %q", err, want)
				}
			}
			t.Log(err)
		})
	}
}

func TestAClusterThatIsGivenIsUsedAndNotBroken(t *testing.T) {
	c := shared.Cluster(t)
	t.Setenv(kubeconfigEnv, c.Kubeconfig())
	t.Setenv(binaryEnv, "/nonexistent") // nothing is started
	given := cluster.NewShared(cluster.Options{})
	connected := given.Cluster(t)
	if err := connected.WaitReady(t.Context()); err != nil {
		t.Error(err)
	}
	for name, breaking := range map[string]func() error{
		"Kill":   connected.APIServer().Kill,
		"Stop":   connected.Etcd().Stop,
		"Pause":  connected.APIServer().Pause,
		"Resume": connected.APIServer().Resume,
		"Start":  func() error { return connected.Etcd().Start(t.Context()) },
	} {
		if err := breaking(); !errors.Is(err, cluster.ErrForeign) {
			t.Errorf("%s: got %v, want %v", name, err, cluster.ErrForeign)
		}
	}
	if err := connected.Stop(); err != nil {
		t.Error(err)
	}
	if err := c.WaitReady(t.Context()); err != nil {
		t.Errorf("after Stop: %v", err)
	}
}

func TestSharedFailsEveryTestThatAsks(t *testing.T) {
	t.Setenv(kubeconfigEnv, filepath.Join(t.TempDir(), "none"))
	broken := cluster.NewShared(cluster.Options{})
	for range 2 {
		asking := &fakeTest{}
		if broken.Cluster(asking); !asking.failed {
			t.Error("it did not")
		}
	}
	if code := broken.Main(runner(func() int { return 7 })).Run(); code != 7 {
		t.Errorf("the tests' exit code 7 became %d", code)
	}
}

type fakeTest struct{ failed bool }

func (*fakeTest) Helper()                 {}
func (f *fakeTest) Fatalf(string, ...any) { f.failed = true }

type runner func() int

func (r runner) Run() int { return r() }
