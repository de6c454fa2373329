package expression_test

import (
	"context"
	"fmt"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint/expression"
)

func ExampleEnv_Compile() {
	env, err := expression.NewEnv(expression.Variable{Name: "self"})
	if err != nil {
		fmt.Println(err)
		return
	}
	self := map[string]any{"spec": map[string]any{"names": []any{"a", "b"}}}
	for _, text := range []string{"self.spec.names.map(n, {'name': n})", "self.spec.size + 1", "1 +"} {
		program, err := env.Compile(text)
		if err != nil {
			fmt.Println("does not compile")
			continue
		}
		value, _, err := program.Run(context.Background(), map[string]any{"self": self})
		if err != nil {
			fmt.Println(err)
			continue
		}
		made, _, err := value.JSON(&expression.Room{Left: 1000})
		fmt.Println(made, err)
	}
	// Output:
	// [map[name:a] map[name:b]] <nil>
	// self.spec.size does not exist
	// does not compile
}

func ExampleScan() {
	parts, err := expression.Scan("http://${self.host}:80/$${path}")
	fmt.Printf("%+v %v\n", parts, err)
	// Output:
	// [{Text:http:// Expression:false} {Text:self.host Expression:true} {Text::80/${path} Expression:false}] <nil>
}
