package restmapper

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// labelAutomanaged is on the APIServices that the API server makes itself: "onstart" for its own groups, "true" for the
// versions of CRDs, which say nothing that the CRDs have not said.
const (
	labelAutomanaged      = "kube-aggregator.kubernetes.io/automanaged"
	automanagedOnStart    = "onstart"
	selectNotAutomanaged  = labelAutomanaged + "!=true"
	conditionAvailability = "Available"
)

// apiService is an APIService as far as mapping needs it.
type apiService struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              apiServiceSpec   `json:"spec"`
	Status            apiServiceStatus `json:"status"`
}

type apiServiceSpec struct {
	Group                string            `json:"group"`
	Version              string            `json:"version"`
	GroupPriorityMinimum int               `json:"groupPriorityMinimum"`
	VersionPriority      int               `json:"versionPriority"`
	Service              *serviceReference `json:"service"`
}

type apiServiceStatus struct {
	Conditions []apiServiceCondition `json:"conditions"`
}

type serviceReference struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

type apiServiceCondition struct {
	Type   string `json:"type"`
	Status string `json:"status"`
}

func (s *apiService) DeepCopyObject() runtime.Object {
	out := *s
	out.ObjectMeta = *s.ObjectMeta.DeepCopy()
	if s.Spec.Service != nil {
		reference := *s.Spec.Service
		out.Spec.Service = &reference
	}
	out.Status.Conditions = append([]apiServiceCondition(nil), s.Status.Conditions...)
	return &out
}

func (s *apiService) groupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: s.Spec.Group, Version: s.Spec.Version}
}

// essence is what mapping needs of the APIService: nil if it only names a version that the API server's own parts serve,
// for then its priorities do not count in discovery.
func (s *apiService) essence() *service {
	if s.Spec.Service == nil && s.Labels[labelAutomanaged] != automanagedOnStart {
		return nil
	}
	e := &service{groupPriority: s.Spec.GroupPriorityMinimum, versionPriority: s.Spec.VersionPriority}
	if s.Spec.Service != nil {
		e.condition = s.Spec.Service.Namespace + "/" + s.Spec.Service.Name
	}
	for _, c := range s.Status.Conditions {
		if c.Type == conditionAvailability {
			e.condition += " " + c.Status
		}
	}
	return e
}

// serviceName is the version that an APIService of this name stands for.
func serviceName(name string) schema.GroupVersion {
	version, group, _ := strings.Cut(name, ".")
	return schema.GroupVersion{Group: group, Version: version}
}
