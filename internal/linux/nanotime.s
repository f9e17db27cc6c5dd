// Empty: its presence lets clock_unsafe.go declare a function without a body.
