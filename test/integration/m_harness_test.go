package integration

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/restmapper"
)

// mapper returns a mapper that has synced and runs until the test ends.
func (h *harness) mapper(opts ...restmapper.Option) (m *restmapper.Mapper, stop func() error) {
	h.Helper()
	m, err := restmapper.New(h.logger(), h.config, opts...)
	h.noError(err)
	stop = h.start(m.Run)
	h.mapperSynced(m)
	return m, stop
}

func (h *harness) mapperSynced(m *restmapper.Mapper) {
	h.Helper()
	h.eventually("the mapper has synced", func() error {
		if !m.HasSynced() {
			return fmt.Errorf("not synced: %v", m.Errors())
		}
		return nil
	})
}

// crdOption changes a CRD.
type crdOption func(*apiextensionsv1.CustomResourceDefinition)

// newCRD returns a CRD with the given versions. All versions are served, and the first one is stored.
func newCRD(group, plural, singular, kind string, versions ...string) *apiextensionsv1.CustomResourceDefinition {
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + "." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Plural: plural, Singular: singular, Kind: kind, ListKind: kind + "List",
			},
		},
	}
	for i, v := range versions {
		crd.Spec.Versions = append(crd.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{
			Name: v, Served: true, Storage: i == 0,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
				Type: "object", XPreserveUnknownFields: ptr.To(true),
			}},
		})
	}
	return crd
}

func (h *harness) createCRD(crd *apiextensionsv1.CustomResourceDefinition) {
	h.Helper()
	_, err := h.crds.ApiextensionsV1().CustomResourceDefinitions().Create(h.Context(), crd, metav1.CreateOptions{})
	h.noError(err)
	for _, version := range crd.Spec.Versions {
		if version.Served {
			h.cleanUpCRD(crd.Name, schema.GroupVersionResource{
				Group: crd.Spec.Group, Version: version.Name, Resource: crd.Spec.Names.Plural,
			})
			break
		}
	}
}

func (h *harness) updateCRD(name string, change crdOption) {
	h.Helper()
	h.eventually("change CRD "+name, func() error {
		crd, err := h.crds.ApiextensionsV1().CustomResourceDefinitions().Get(h.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(crd)
		_, err = h.crds.ApiextensionsV1().CustomResourceDefinitions().Update(h.Context(), crd, metav1.UpdateOptions{})
		return err
	})
}

// discoveryCount returns a counter of the discovery requests that are sent through the wire from now on.
func (w *wire) discoveryCount() *atomic.Int64 {
	var n atomic.Int64
	w.set(func(r *http.Request, send send) (*http.Response, error) {
		if isDiscovery(r) {
			n.Add(1)
		}
		return send(r)
	})
	return &n
}

// isDiscovery reports whether the request's path is /api, /apis, /api/v1, /apis/group or /apis/group/version.
func isDiscovery(r *http.Request) bool {
	path := splitPath(r.URL.Path)
	switch {
	case len(path) == 0:
		return false
	case path[0] == "api":
		return len(path) <= 2
	default:
		return path[0] == "apis" && len(path) <= 3
	}
}

func splitPath(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
}
