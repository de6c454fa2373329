package integration

import (
	"cmp"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/dynamic-controller/engine/dynamiccontroller/controllertest"
	"github.com/dynamic-controller/engine/internal/apicases"
)

// answersOf is the version of Kubernetes whose answers package controllertest gives.
const answersOf = "1.37"

var updateAnswers = flag.Bool("update-answers", false, "record the answers of the API server for controllertest")

// The server of package controllertest answers like the API server, except in the documented cases. A documented
// difference that no longer exists is an error.
func TestControllertest_AnswersLikeTheAPIServer(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	version, err := h.clients.Discovery().ServerVersion()
	h.noError(err)
	if version.Major+"."+version.Minor != answersOf {
		t.Skipf("the answers are those of Kubernetes %s, not of %s", answersOf, version)
	}
	crd := newCRD(h.newType().Group, "things", "thing", "Thing", "v1")
	crd.Spec.Versions[0].Subresources = &apiextensionsv1.CustomResourceSubresources{
		Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
	}
	things := h.exclusiveType("Thing", crd)
	fake := controllertest.NewServer(
		controllertest.Type{GVR: things, Kind: "Thing"},
		controllertest.Type{GVR: apicases.ConfigMaps, Kind: "ConfigMap"},
		controllertest.Type{GVR: apicases.Roles, Kind: "Role"},
		controllertest.Type{GVR: apicases.Namespaces, Kind: "Namespace", ClusterScoped: true},
	)
	inMemory := apicases.Server{Client: fake, Things: things, Namespace: h.namespace}
	apiServer := apicases.Server{Client: h.client, Things: things, Namespace: h.namespace}
	equal := 0
	var digests []string
	recorded := apicases.Recorded()
	for _, c := range apicases.All() {
		want, err := apiServer.Answers(t.Context(), c)
		h.noError(err)
		got, err := inMemory.Answers(t.Context(), c)
		h.noError(err)
		digest := apicases.Digest(want)
		digests = append(digests, digest+" "+c.Name+"\n")
		if !*updateAnswers && digest != recorded[c.Name] {
			t.Errorf("%s: the API server does not answer as recorded; run this test with -update-answers: %s",
				c.Name, strings.Join(want, "\n"))
		}
		reason, documented := apicases.Differences[c.Name]
		switch {
		case slices.Equal(got, want) && documented:
			t.Errorf("%s: the answers are equal, but there is a documented difference: %s", c.Name, reason)
		case !slices.Equal(got, want) && !documented:
			t.Errorf("%s: controllertest (+) differs from the API server (-): %s", c.Name, gocmp.Diff(want, got))
		case !documented:
			equal++
		}
	}
	if *updateAnswers {
		slices.SortFunc(digests, func(a, b string) int { return cmp.Compare(nameIn(a), nameIn(b)) })
		path := filepath.Join("..", "..", "internal", "apicases", "testdata", "answers.txt")
		h.noError(os.WriteFile(path, []byte(strings.Join(digests, "")), 0o644))
	}
	t.Logf("%d of %d cases are equal", equal, len(apicases.All()))
}

// nameIn returns the name of the case in a line with a digest.
func nameIn(line string) string {
	_, name, _ := strings.Cut(line, " ")
	return name
}
