package serverfence_test

import (
	"fmt"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/serverfence"
)

func ExampleObjects() {
	policy, binding, err := serverfence.Objects(serverfence.Options{
		Name:           "my-platform-fence",
		LeaseNamespace: "my-namespace",
		LeaseName:      "my-platform",
		Username:       "system:serviceaccount:my-namespace:my-platform",
	})
	if err != nil {
		panic(err)
	}
	fmt.Println(policy.Kind, policy.Name)
	fmt.Println(binding.Kind, binding.Spec.PolicyName, binding.Spec.ParamRef.Selector.MatchLabels)
	// Output:
	// ValidatingAdmissionPolicy my-platform-fence
	// ValidatingAdmissionPolicyBinding my-platform-fence map[fence.dynamic-controller.github.io/lease:my-platform]
}
