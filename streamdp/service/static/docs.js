document.documentElement.classList.toggle("dark-mode", matchMedia("(prefers-color-scheme: dark)").matches);
SwaggerUIBundle({ url: "openapi.json", dom_id: "#calls", deepLinking: true, validatorUrl: null });
