package kind

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/dynamic-controller/engine/test/apiproxy"
)

// account returns a kubeconfig with a token of the platform's service account, whose calls are seen.
func (a *api) account() (kubeconfig string, calls *apiproxy.Proxy) {
	a.Helper()
	proxy, err := apiproxy.Start(a.cluster.Config())
	if err != nil {
		a.Fatal(err)
	}
	a.Cleanup(proxy.Close)
	token, err := a.kube.CoreV1().ServiceAccounts(namespace).CreateToken(a.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		a.Fatal(err)
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["it"] = &clientcmdapi.Cluster{Server: proxy.URL(), CertificateAuthorityData: proxy.CAData()}
	config.AuthInfos["it"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	config.Contexts["it"] = &clientcmdapi.Context{Cluster: "it", AuthInfo: "it"}
	config.CurrentContext = "it"
	path := filepath.Join(a.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		a.Fatal(err)
	}
	return path, proxy
}

// waitRights returns once the account has the rights that the aggregated role takes up.
func (a *api) waitRights() {
	a.Helper()
	user := "system:serviceaccount:" + namespace + ":" + name
	for _, want := range []authorizationv1.ResourceAttributes{
		{Group: "demo.example.com", Resource: "webapps", Subresource: "status", Verb: "patch"},
		{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions", Verb: "create"},
		{Group: "coordination.k8s.io", Resource: "leases", Namespace: namespace, Verb: "create"},
		{Group: "apps", Resource: "controllerrevisions", Namespace: namespace, Verb: "create"},
	} {
		eventually(a.T, func(ctx context.Context) error {
			review, err := a.kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
				Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &want},
			}, metav1.CreateOptions{})
			if err == nil && !review.Status.Allowed {
				err = fmt.Errorf("it may not %s %s", want.Verb, want.Resource)
			}
			return err
		})
	}
}

// demoRole is the role of the demonstration's Blueprint.
const demoRole = "dynamic-controller-demo"

// rules are all that the manifests allow the account, but for the Blueprint.
func rules(t *testing.T) (all []rbacv1.PolicyRule) {
	t.Helper()
	for _, obj := range manifests(t) {
		if obj.GetName() == demoRole {
			continue
		}
		switch obj.GetKind() {
		case "ClusterRole":
			all = append(all, typed[rbacv1.ClusterRole](t, obj).Rules...)
		case "Role":
			all = append(all, typed[rbacv1.Role](t, obj).Rules...)
		}
	}
	return all
}

func (a *api) testTheDemonstrationNeedsAllRights() {
	kubeconfig, calls := a.account()
	demo := exec.CommandContext(a.Context(), filepath.Join(binaries, "demo"), "--binary", filepath.Join(binaries, name),
		"--log", filepath.Join(a.TempDir(), "log"), "--namespace", namespace, "--platform-kubeconfig", kubeconfig)
	demo.Env = append(os.Environ(), "KUBECONFIG="+a.cluster.Kubeconfig())
	if out, err := demo.CombinedOutput(); err != nil {
		a.Errorf("%v:\n%s", err, out)
	}

	seen := calls.Calls()
	for _, c := range seen {
		if c.Status == http.StatusForbidden || c.Status == http.StatusUnauthorized {
			a.Errorf("denied with %d: %s %s (%s)", c.Status, c.Verb, c.Resource, c.Path)
		}
	}
	for _, unused := range unusedOf(rules(a.T), seen) {
		if why, is := notInTheStory[unused]; is {
			a.Logf("the demonstration did not need %s: %s", unused, why)
			continue
		}
		a.Errorf("the demonstration did not need %s", unused)
	}
}

// notInTheStory are rights that the story cannot be sure to use.
var notInTheStory = map[string]string{
	"get blueprints.platform.example.com":     "it is read after a conflict",
	"list apiservices.apiregistration.k8s.io": "it is listed where the API server cannot stream lists",
	"get controllerrevisions.apps":            "a revision is read when the cache does not show it yet",
	"patch controllerrevisions.apps":          "a revision is renumbered when its spec is applied again",
}

// The platform asks for each of the Blueprint's rights before it accepts that. So any that is taken from the role is missed,
// and the demonstration tells what is.
func TestTheBlueprintTakesAllRightsOfItsRole(t *testing.T) {
	var role rbacv1.ClusterRole
	for _, obj := range manifests(t) {
		if obj.GetName() == demoRole {
			role = *typed[rbacv1.ClusterRole](t, obj)
		}
	}
	instance, child := []string{"get", "list", "watch", "patch", "delete"}, []string{"get", "list", "watch", "create", "patch", "delete"}
	want := map[string][]string{
		"webapps.demo.example.com": instance, "webapps/status.demo.example.com": {"patch"},
		"configmaps.": child, "services.": child, "deployments.apps": child,
	}
	got := map[string][]string{}
	for _, rule := range role.Rules {
		for _, resource := range rule.Resources {
			got[resource+"."+rule.APIGroups[0]] = rule.Verbs
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the role has %v, want %v", got, want)
	}
}

// unusedOf lists what the rules allow and no call made use of.
func unusedOf(rules []rbacv1.PolicyRule, calls []apiproxy.Call) (unused []string) {
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					if !slices.ContainsFunc(calls, func(c apiproxy.Call) bool {
						return c.Group == group && c.Resource == resource && c.Verb == verb && c.Status < http.StatusBadRequest &&
							(len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, c.Name))
					}) {
						unused = append(unused, fmt.Sprintf("%s %s.%s", verb, resource, group))
					}
				}
			}
		}
		if len(rule.NonResourceURLs) > 0 {
			unused = append(unused, strings.Join(rule.NonResourceURLs, ", "))
		}
	}
	return unused
}

func TestUnusedRightsAreFound(t *testing.T) {
	rule := rbacv1.PolicyRule{APIGroups: []string{"a"}, Resources: []string{"b", "b/status"}, Verbs: []string{"get", "patch"}, ResourceNames: []string{"c"}}
	calls := []apiproxy.Call{
		{Verb: "get", Group: "a", Resource: "b", Name: "c", Status: http.StatusOK},
		{Verb: "patch", Group: "a", Resource: "b", Name: "d", Status: http.StatusOK},
		{Verb: "patch", Group: "a", Resource: "b/status", Name: "c", Status: http.StatusForbidden},
	}
	want := []string{"patch b.a", "get b/status.a", "patch b/status.a"}
	if got := unusedOf([]rbacv1.PolicyRule{rule}, calls); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func (a *api) testTheProbesAreAnswered() {
	kubeconfig, _ := a.account()
	container := only[appsv1.Deployment](a.T, "Deployment").Spec.Template.Spec.Containers[0]
	port := regexp.MustCompile(`:(\d+)$`)
	// The same flags, on ports that nobody else has.
	args, ports := []string{}, map[string]string{}
	for _, arg := range container.Args {
		if flag, address, ok := strings.Cut(arg, "="); ok && strings.HasSuffix(flag, "-bind-address") {
			ports[port.FindStringSubmatch(address)[1]] = strings.TrimPrefix(flag, "--")
			arg = flag + "=127.0.0.1:0"
		}
		args = append(args, arg)
	}
	cmd := exec.CommandContext(a.Context(), filepath.Join(binaries, name), append(args, "--kubeconfig", kubeconfig)...)
	cmd.Env = append(os.Environ(), "POD_NAME=one", "POD_NAMESPACE="+namespace)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		a.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		a.Fatal(err)
	}
	lines := make(chan string)
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(lines)
		for s := bufio.NewScanner(stderr); s.Scan(); {
			select {
			case lines <- s.Text():
			case <-a.Context().Done():
			}
		}
	}()
	a.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-read
		_ = cmd.Wait()
	})

	listening := regexp.MustCompile(`"listening","endpoint":"([^"]+)","address":"([^"]+)"`)
	addresses := map[string]string{}
	timeout := time.After(patience)
	for len(addresses) < len(ports) {
		select {
		case text, ok := <-lines:
			if !ok {
				a.Fatal("it has ended")
			}
			if found := listening.FindStringSubmatch(text); found != nil {
				addresses[found[1]] = found[2]
			}
		case <-timeout:
			a.Fatalf("it listens on %v alone", addresses)
		}
	}
	go func() { // what it says from now on is of no interest
		for range lines {
		}
	}()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	numbers := map[string]string{}
	for _, p := range container.Ports {
		numbers[p.Name] = fmt.Sprint(p.ContainerPort)
	}
	for _, get := range []struct{ path, port string }{
		{container.ReadinessProbe.HTTPGet.Path, container.ReadinessProbe.HTTPGet.Port.String()},
		{container.LivenessProbe.HTTPGet.Path, container.LivenessProbe.HTTPGet.Port.String()},
		{"/metrics", "metrics"},
	} {
		eventually(a.T, func(context.Context) error {
			answer, err := client.Get("http://" + addresses[ports[numbers[get.port]]] + get.path)
			if err != nil {
				return err
			}
			answer.Body.Close()
			if answer.StatusCode != http.StatusOK {
				return fmt.Errorf("%s answers %s", get.path, answer.Status)
			}
			return nil
		})
	}
}
